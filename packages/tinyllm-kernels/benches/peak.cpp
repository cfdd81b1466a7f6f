// What the units of this machine multiply and add at most: from registers to registers, in as many
// sums as hide the wait for each of them, on all threads. `run.sh` builds it; `tools/roofline` takes
// what it prints as `--peak`.
//
// What is printed is the fastest of many runs: the machine may be shared.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "../native/thread_pool.h"
#include "../native/vectors.h"

namespace {

using namespace tinyllm;
using namespace tinyllm::TINYLLM_TIER;

constexpr int kSums = 12;  // a unit takes up to two products a cycle, and some cycles for each
constexpr int kSteps = 1 << 20;

volatile char seed, sink;  // nobody knows what is read here, and what is written has to be computed

// Seconds in which every thread makes kSteps steps of kSums products, of which `step` is one.
template <typename Sum, typename Step>
double fastest(Step step) {
  const auto loop = [=] {
    Sum sums[kSums];
    // No two of them alike: a compiler would make one sum of both.
    for (int n = 0; n < kSums; ++n) std::memset(&sums[n], seed + n, sizeof sums[n]);
    for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
      for (int n = 0; n < kSums; ++n) sums[n] = step(sums[n]);
    }
    char bytes[sizeof sums];
    std::memcpy(bytes, sums, sizeof sums);
    for (int n = 0; n < kSums; ++n) sink = bytes[n * sizeof(Sum)];
  };
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

// `numbers` are multiplied, and as many added, by one instruction of a step.
void print(const char* what, int numbers, double seconds) {
  const double operations = 2.0 * numbers * kSums * kSteps * thread_count();
  std::printf("%s: %.3f TFLOP/s\n", what, operations / seconds / 1e12);
}

}  // namespace

int main() {
  std::printf("%s, %d threads\n", TINYLLM_TIER_NAME, thread_count());
  const Floats half = splat(0.5f), one = splat(1.0f);
  // The sum is a factor, so that the product cannot be taken out of the loop.
  print("float32", W, fastest<Floats>([=](Floats sum) { return sum * half + one; }));
#if defined(__AVX512BF16__)
  const __m512bh pairs = std::bit_cast<__m512bh>(Words{} + 0x3fa03fa0u);  // 1.25, twice
  print("pairs of bfloat16", 2 * W,
        fastest<__m512>([=](__m512 sum) { return _mm512_dpbf16_ps(sum, pairs, pairs); }));
#endif
#if defined(__AVX512VNNI__)
  const __m512i bytes = _mm512_set1_epi8(3);
  print("bytes", 4 * W,
        fastest<__m512i>([=](__m512i sum) { return _mm512_dpbusd_epi32(sum, bytes, bytes); }));
#endif
}
