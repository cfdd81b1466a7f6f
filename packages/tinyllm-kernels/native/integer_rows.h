// A row of codes times a few rows of x in integers, for instruction sets with VNNI.
//
// VNNI multiplies 64 bytes with 64 signed bytes and adds the products up by fours, in one
// instruction. x has more than 8 bits, so it goes in as two planes: in each group x = scale *
// (128 high + low) with high and low in a byte, which is x to 15 bits of the largest number of the
// group. That is less than the rounding of a result to 16 bits, and the sums of integers are exact.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "constant.h"
#include "decode.h"
#include "linear.h"
#include "numbers.h"
#include "put.h"
#include "sum_lanes.h"
#include "vectors.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace tinyllm::TINYLLM_TIER {

// Codes in 64 bytes.
template <int Bits>
inline constexpr int kChunk = 64 * 8 / Bits;

#if defined(__AVX512VNNI__)

inline bool multiplies_in_integers(const Weights& w, Type type) {
  return type != Type::float32 && w.mode == Mode::affine && (w.bits == 4 || w.bits == 8) &&
         w.columns % kChunk<4> == 0;
}

template <int First, int... Lanes>
inline Ints every_other(Ints a, Ints b, std::integer_sequence<int, Lanes...>) {
  return __builtin_shufflevector(a, b, First + 2 * Lanes...);
}

inline void store_bytes(int8_t* to, Ints v) {
  using Bytes [[gnu::vector_size(W)]] = int8_t;
  const Bytes bytes = __builtin_convertvector(v, Bytes);
  std::memcpy(to, &bytes, sizeof bytes);
}

// The planes of x in the order in which codes lie in a chunk: of 4 bits the even codes of 64 bytes
// and then the odd ones; first all of the high plane, then the low one.
template <int Bits>
void to_planes(const float* x, int64_t count, int group, int8_t* planes, float* scales) {
  constexpr int chunk = kChunk<Bits>;
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  for (int64_t g = 0; g < count / group; ++g, x += group) {
    Floats sizes = {};
    for (int i = 0; i < group; i += W) sizes = max(load(x + i), max(-load(x + i), sizes));
    const float largest = largest_lane(sizes);
    scales[g] = largest / 16256;
    const float inverse = largest > 0 ? 16256 / largest : 0;
    for (int i = 0; i < group; i += 2 * W) {
      // 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
      const Ints a = std::bit_cast<Ints>(load(x + i) * inverse + 12582912.0f) - 0x4b400000;
      const Ints b = std::bit_cast<Ints>(load(x + i + W) * inverse + 12582912.0f) - 0x4b400000;
      const int64_t k = g * group + i, in_chunk = k % chunk;
      int8_t* first = planes + (k - in_chunk) * 2 + in_chunk / (8 / Bits);
      int8_t* second = first + (Bits == 4 ? 64 : W);
      const Ints firsts = Bits == 4 ? every_other<0>(a, b, lanes) : a;
      const Ints seconds = Bits == 4 ? every_other<1>(a, b, lanes) : b;
      for (const auto& [to, whole] : {std::pair{first, firsts}, std::pair{second, seconds}}) {
        const Ints high = (whole + 64) >> 7;
        store_bytes(to, high);
        store_bytes(to + chunk, whole - (high << 7));
      }
    }
  }
}

// 64 bytes of codes, as the operands that their planes of x are multiplied with.
template <int Bits>
struct Chunk {
  explicit Chunk(const uint8_t* from) {
    __m512i codes = _mm512_loadu_si512(from);
    asm("" : "+v"(codes));  // to be loaded once: GCC would load it for each of its two uses
    if constexpr (Bits == 4) {
      const __m512i low_bits = _mm512_set1_epi8(15);
      parts[0] = _mm512_and_si512(codes, low_bits);
      parts[1] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low_bits);
    } else {
      parts[0] = codes;
    }
  }

  // Times their numbers of x: 16 sums, each over the codes of four bytes.
  Floats sums(const int8_t* planes) const {
    __m512i sums = _mm512_setzero_si512();
    for (int plane = 0; plane < 2; ++plane) {
      if (plane == 1) sums = _mm512_slli_epi32(sums, 7);
      for (int i = 0; i < 8 / Bits; ++i, planes += 64) {
        sums = _mm512_dpbusd_epi32(sums, parts[i], _mm512_loadu_si512(planes));
      }
    }
    return std::bit_cast<Floats>(_mm512_cvtepi32_ps(sums));
  }

  __m512i parts[8 / Bits];
};

// Up to 16 scales or biases from `at` on; zero where `which` has no bit.
template <typename T>
inline Floats some(const void* data, int64_t at, __mmask16 which) {
  const T* from = static_cast<const T*>(data) + at;
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<Floats>(_mm512_maskz_loadu_ps(which, from));
  } else {
    const __m256i halves = _mm256_maskz_loadu_epi16(which, from);
    if constexpr (std::is_same_v<T, Float16>) {
      return std::bit_cast<Floats>(_mm512_cvtph_ps(halves));
    } else {
      return std::bit_cast<Floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
  }
}

// Bytes of planes that have room beside some rows of w.
inline constexpr int64_t kNear = 24 << 10;

// Chunks whose scales are looked up together: with groups of 32 they are 16, a vector.
inline constexpr int kChunks = 4;

// Which scale of its block each lane of each chunk has.
template <int Bits>
struct Owners {
  explicit Owners(int group) {
    const int shift = std::countr_zero(static_cast<unsigned>(group));
    for (int c = 0; c < kChunks; ++c) {
      alignas(64) int owner[W];
      for (int lane = 0; lane < W; ++lane) {
        owner[lane] = (c * W + lane) * (kChunk<Bits> / W) >> shift;
      }
      of[c] = _mm512_load_si512(owner);
    }
  }

  __m512i of[kChunks];
};

// Up to W rows of w from `first` on times M rows of x from `token` on. Every sum is the same whatever
// M is.
template <int Bits, typename T, int M>
void multiply_in_integers(const LinearTask& t, const Owners<Bits>& owners, int64_t token,
                          int64_t first, int64_t rows) {
  const Weights& w = *t.w;
  constexpr int chunk = kChunk<Bits>;
  const int shift = std::countr_zero(static_cast<unsigned>(w.group));  // divisions would take as long
  const int64_t columns = w.columns, row_bytes = columns * Bits / 8, groups = columns >> shift;
  const int all = static_cast<int>(columns / chunk);
  Floats found[M][W] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t n = first + r;
    const uint8_t* row = static_cast<const uint8_t*>(w.data) + n * row_bytes;
    Floats total[M] = {};
    for (int c = 0; c < all; c += kChunks) {
      const int chunks = std::min(kChunks, all - c);
      const int64_t g = int64_t{c} * chunk >> shift;
      const __mmask16 which = static_cast<__mmask16>((1 << (chunks * chunk >> shift)) - 1);
      const Floats of_w = some<T>(w.scales, n * groups + g, which);
      const Floats biases = some<T>(w.biases, n * groups + g, which);
      Floats scales[M];
      for (int m = 0; m < M; ++m) {
        scales[m] = of_w * some<float>(t.plane_scales, (token + m) * groups + g, which);
        total[m] += biases * some<float>(t.sums, (token + m) * groups + g, which);
      }
#pragma GCC unroll 4
      for (int j = 0; j < kChunks; ++j) {
        if (j == chunks) break;
        const Chunk<Bits> codes(row + 64 * (c + j));
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const int8_t* planes = t.planes + ((token + m) * columns + (c + j) * chunk) * 2;
          const __m512 lanes =
              _mm512_permutexvar_ps(owners.of[j], std::bit_cast<__m512>(scales[m]));
          total[m] += codes.sums(planes) * std::bit_cast<Floats>(lanes);
        }
      }
    }
    for (int m = 0; m < M; ++m) found[m][r] = total[m];
  }
  for (int m = 0; m < M; ++m) {
    alignas(64) float sums[W];
    for (int r = 0; r < W; r += 4) {
      store_sums(found[m][r], found[m][r + 1], found[m][r + 2], found[m][r + 3], sums + r);
    }
    put_some(t, token + m, first, sums, rows);
  }
}

// A part: rows of w times its rows of x. Some rows of w at a time, which are still near when the next
// tokens want them.
template <int Bits>
void multiply_integer_rows(const LinearTask& t, const LinearRange& range) {
  const Owners<Bits> owners(t.w->group);
  // Their planes stay in the first-level cache while the rows of w go by.
  const int64_t tokens = 8 * 2 * t.w->columns <= kNear ? 8 : 4;
  with_type(t.w->type, [&]<typename T>(T*) {
    for (int64_t first = range.first_row; first < range.last_row; first += W) {
      const int64_t rows = std::min<int64_t>(W, range.last_row - first);
      for (int64_t m = range.first_token; m < range.last_token; m += tokens) {
        with_constant<8>(std::min(range.last_token - m, tokens), [&]<int M>() {
          multiply_in_integers<Bits, T, M>(t, owners, m, first, rows);
        });
      }
    }
  });
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
