// The peak arithmetic rate of this machine: multiplications and additions between registers, with
// enough independent sums to hide the latency of each, on all threads. `run.sh` builds the program. The
// roofline tool takes a printed rate as `--peak`.
//
// Each line is the fastest of many runs, because the machine may be shared.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AMX_BF16__)
#include "dispatch/tile_permission.h"
#endif

#include "isa/tile_registers.h"
#include "isa/vectors.h"
#include "runtime/thread_pool.h"

namespace {

using namespace tinyllm;
using namespace tinyllm::TINYLLM_ISA;

// Up to two products a cycle with a latency of up to six cycles need 12 independent sums.
constexpr int kSums = 12;
constexpr int kSteps = 1 << 20;

// The compiler can predict neither the values that are read from `seed` nor that `sink` is unused.
volatile char seed, sink;

// Returns the fewest seconds in which each thread ran `loop`.
template <typename Loop>
double fastest_loop(Loop loop) {
  double best = 1e9;
  for (int run = 0; run < 20; ++run) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> others;
    for (int i = 1; i < thread_count(); ++i) others.emplace_back(loop);
    loop();
    for (std::thread& other : others) other.join();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// Returns the fewest seconds in which each thread computed kSteps * kSums times `step`.
template <typename Sum, typename Step>
double fastest(Step step) {
  return fastest_loop([=] {
    Sum sums[kSums];
    // Different start values: the compiler would merge equal sums.
    for (int n = 0; n < kSums; ++n) std::memset(&sums[n], seed + n, sizeof sums[n]);
    for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
      for (int n = 0; n < kSums; ++n) sums[n] = step(sums[n]);
    }
    char bytes[sizeof sums];
    std::memcpy(bytes, sums, sizeof sums);
    for (int n = 0; n < kSums; ++n) sink = bytes[n * sizeof(Sum)];
  });
}

#if defined(__AMX_BF16__)
constexpr int kTileSteps = 1 << 18;

// Prints the rate of products of tiles: four sums, each of 16 x 16 numbers and 32 products. Random
// numbers, because the processor lowers its clock for them, and not for zeros.
template <bool FromCache>
void print_tiles(const char* what) {
  const double seconds = fastest_loop([] {
    alignas(64) uint16_t numbers[4][512];
    uint32_t state = 1 + seed;
    for (auto& tile : numbers) {
      for (uint16_t& number : tile) {
        state = state * 1664525u + 1013904223u;
        number = ((state >> 16) & 0x80ff) | 0x3c00;  // of either sign, about 2^-7
      }
    }
    TileRegisters tiles;
    const auto load = [&] {
      tiles.load<4>(numbers[0], 64);
      tiles.load<5>(numbers[1], 64);
      tiles.load<6>(numbers[2], 64);
      tiles.load<7>(numbers[3], 64);
    };
    tiles.zero<0>();
    tiles.zero<1>();
    tiles.zero<2>();
    tiles.zero<3>();
    load();
    for (int i = 0; i < kTileSteps; ++i) {
      if (FromCache) load();
      tiles.multiply_add<0, 4, 6>();
      tiles.multiply_add<1, 4, 7>();
      tiles.multiply_add<2, 5, 6>();
      tiles.multiply_add<3, 5, 7>();
    }
  });
  const double operations = 2.0 * 8192 * 4 * kTileSteps * thread_count();
  std::printf("%s: %.3f TFLOP/s\n", what, operations / seconds / 1e12);
}
#endif

// Prints the rate. One `step` does `numbers` multiplications and as many additions.
void print(const char* what, int numbers, double seconds) {
  const double operations = 2.0 * numbers * kSums * kSteps * thread_count();
  std::printf("%s: %.3f TFLOP/s\n", what, operations / seconds / 1e12);
}

}  // namespace

int main() {
  std::printf("%s, %d threads\n", TINYLLM_ISA_NAME, thread_count());
  const Floats half = splat(0.5f), one = splat(1.0f);
  // The sum is a factor, so that the product cannot be taken out of the loop.
  print("float32", W, fastest<Floats>([=](Floats sum) { return sum * half + one; }));
#if defined(__AVX512BF16__)
  const __m512bh pairs = bit_cast<__m512bh>(Words{} + 0x3fa03fa0u);  // 1.25, twice
  print("pairs of bfloat16", 2 * W,
        fastest<__m512>([=](__m512 sum) { return _mm512_dpbf16_ps(sum, pairs, pairs); }));
#endif
#if defined(__AVX512VNNI__)
  const __m512i bytes = _mm512_set1_epi8(3);
  print("bytes", 4 * W,
        fastest<__m512i>([=](__m512i sum) { return _mm512_dpbusd_epi32(sum, bytes, bytes); }));
#endif
  // GCC would copy each sum of the following to another register.
#if defined(__AVXVNNI__) && !defined(__AVX512F__)
  const __m256i integers = _mm256_set1_epi16(3);
  print("pairs of 16-bit integers", 2 * W, fastest<__m256i>([=](__m256i sum) {
          sum = _mm256_dpwssd_avx_epi32(sum, integers, integers);
          asm("" : "+x"(sum));
          return sum;
        }));
  print("bytes", 4 * W, fastest<__m256i>([=](__m256i sum) {
          sum = _mm256_dpbusd_avx_epi32(sum, integers, integers);
          asm("" : "+x"(sum));
          return sum;
        }));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i integers = _mm256_set1_epi16(3);
  print("pairs of 16-bit integers", 2 * W, fastest<__m256i>([=](__m256i sum) {
          __m256i products;
          asm("vpmaddwd %2, %0, %1\n\tvpaddd %1, %0, %0"
              : "+x"(sum), "=&x"(products)
              : "x"(integers));
          return sum;
        }));
#endif
#if defined(__AMX_BF16__)
  if (tinyllm::request_tile_registers()) {
    print_tiles<false>("bfloat16 on tiles");
    print_tiles<true>("bfloat16 on tiles, loaded from the first-level cache");
  }
#endif
}
