// GEMV with int8 activations: W interleaved rows of w times some rows of x.
//
// Weights with `int8_activations` are multiplied so, in decode and in prefill. (On AMX, prompts in
// bfloat16 are multiplied as with other weights, and tiles multiply several rows. On AVX2,
// matmul/integer/gemm.h multiplies many rows.)
//
// In each group of a row x is scale * q with |q| <= 127. One product of bytes takes the place of
// two (see gemv.h), and results are less exact: the error of a number of x is at most 1/254 of the
// largest one of its group.
#pragma once

#include "matmul/integer/quantize_x.h"

#if defined(TINYLLM_INTEGERS)

#include <algorithm>

#include "isa/load_store.h"
#include "matmul/integer/prefetch_codes.h"
#include "matmul/interleave.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_ISA {

// Rows of x that are packed together. For each word of codes, the words of the rows are side by side.
// So are the scales and the sums of a group.
inline constexpr int kInt8Tokens = kXTile;

// Words of x in int8 that belong to a word of codes: with 4 bits, those of even codes and of odd
// codes.
template <int Bits>
inline constexpr int kInt8XWords = 8 / Bits;

// Byte `Byte` of W / 2 words of x, made of 2 W numbers. The upper lanes repeat the lower ones.
template <int Bits, int Byte, int... Lanes>
inline Words byte_of_words(Ints a, Ints b, std::integer_sequence<int, Lanes...>) {
  constexpr int words = kInt8XWords<Bits>;
  return bit_cast<Words>(__builtin_shufflevector(
             a, b,
             (Lanes % (W / 2) / words * kCodesPerWord<Bits> + Byte * words + Lanes % words)...)) &
         255;
}

template <int Bits, int... Bytes>
inline Words byte_words(Ints a, Ints b, std::integer_sequence<int, Bytes...>) {
  constexpr std::make_integer_sequence<int, W> lanes;
  return ((byte_of_words<Bits, Bytes>(a, b, lanes) << 8 * Bytes) | ...);
}

// Quantizes the groups of a range of row `token` of x to int8.
template <int Bits>
void quantize_row_to_int8(const float* x, int64_t token, const XRange& range, const Weights& w,
                          const QuantizedX& to) {
  const int64_t first = token / kInt8Tokens * kInt8Tokens, index = token - first;
  const int64_t tokens = std::min<int64_t>(kInt8Tokens, to.tokens - first);
  const int64_t groups = w.columns / w.group;
  int8_t* words = to.integers + first * w.columns + range.first_group * w.group * tokens + 4 * index;
  for (int64_t g = range.first_group; g < range.last_group; ++g, x += w.group) {
    const auto store = [&](Ints a, Ints b, int) {
      const Words packed = byte_words<Bits>(a, b, std::make_integer_sequence<int, 4>{});
      for (int n = 0; n < W / 2; ++n, words += 4 * tokens) {
        const uint32_t word = packed[n];
        std::memcpy(words, &word, sizeof word);
      }
    };
    const int64_t at = first * groups + g * tokens + index;
    quantize_group(x, w.group, 127, to.scales[at], to.group_sums[at], store);
  }
}

// Quantizes a range of x to int8.
template <int Bits>
void quantize_to_int8(const XRange& range, const Weights& w, const QuantizedX& to) {
  const float* x = range.x;
  for (int64_t token = range.first_token; token < range.last_token; ++token, x += range.stride) {
    quantize_row_to_int8<Bits>(x, token, range, w, to);
  }
}

// Some rows of x of a tile.
struct Int8Tokens {
  const int8_t* words;
  const float *scales, *group_sums;
  int64_t tile;  // rows of the tile
};

// Multiplies W interleaved rows of w from `first` on, of which `rows` exist, by M rows of x from
// `token` on. T is the type of the scales. The order of each sum is independent of M.
template <Codes C, typename T, int M, typename Prefetch>
void int8_gemv_rows(const LinearTask& t, const Weights& w, Int8Tokens x, int64_t token,
                    int64_t first, int64_t rows, Prefetch prefetch) {
  constexpr int kCodes = kCodesPerWord<kBits<C>>;  // in a word
  constexpr int kWords = std::max(kWordsPerInt16Sum<C>, Prefetch::kWordsOfLine);
  const int64_t groups = w.columns / w.group;
  const int group_words = w.group / kCodes;
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * (w.columns / kCodes);
  const RowAffines<T> affines(w, first);
  const int64_t stride = 4 * x.tile;  // bytes from a word to the next of the same row
  Floats results[M] = {};
  for (int64_t g = 0; g < groups; ++g) {
    Int8Sums sums[M] = {};
    for (int i = 0; i < group_words; i += kWords) {
#pragma GCC unroll 4
      for (int n = 0; n < kWords; ++n, codes += W) {
        if (n % Prefetch::kWordsOfLine == 0) prefetch.codes(codes);
        const CodeBytes<C> bytes(codes);
        // The sum of a row would wait for itself if all codes of a word met one row after the
        // other.
#pragma GCC unroll 2
        for (int v = 0; v < kInt8XWords<kBits<C>>; ++v, x.words += stride) {
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) sums[m].multiply_add(bytes.bytes[v], x.words + 4 * m);
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) sums[m].widen();
    }
    affines.prefetch(g);
    const auto [scale, bias] = affines_of_integers<C>(affines[g], kCodeOffset<C>);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      results[m] += sums[m].to_floats() * (scale * x.scales[g * x.tile + m]);
      results[m] += bias * x.group_sums[g * x.tile + m];
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    if (rows == W) {
      store_vector(t, token + m, first, results[m]);
    } else {
      alignas(64) float values[W];
      store(values, results[m]);
      store_results(t, token + m, first, values, rows);
    }
  }
}

// Multiplies W rows of w by the rows `token` to `last` of a tile: M at once, then half as many and so
// on.
template <Codes C, typename T, int M>
void int8_gemv_tokens(const LinearTask& t, const Weights& w, Int8Tokens x, int64_t token,
                      int64_t last, int64_t first, int64_t rows, const CodePrefetch& prefetch) {
  for (; last - token >= M; token += M) {
    if (prefetch.has_two_steps<M>()) {
      int8_gemv_rows<C, T, M>(t, w, x, token, first, rows, prefetch.two_steps);
    } else {
      int8_gemv_rows<C, T, M>(t, w, x, token, first, rows, prefetch.one_step);
    }
    x.words += 4 * M, x.scales += M, x.group_sums += M;
  }
  if constexpr (M > 1) {
    int8_gemv_tokens<C, T, M / 2>(t, w, x, token, last, first, rows, prefetch);
  }
}

// Computes a part, W rows of w at a time, so that they are still in the cache for the next rows of
// x. `scratch` has memory for W interleaved rows, used if w is plain.
template <Codes C, typename T>
void int8_gemv(const LinearTask& t, const LinearRange& range, float* scratch) {
  const CodePrefetch prefetch;
  const int64_t groups = t.w->columns / t.w->group;
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t rows = std::min<int64_t>(W, range.last_row - first);
    Weights interleaved;
    if (!t.w->interleaved) interleaved = interleave_rows(*t.w, first, rows, scratch);
    const Weights& w = t.w->interleaved ? *t.w : interleaved;
    for (int64_t m = range.first_token; m < range.last_token; m += kInt8Tokens) {
      const Int8Tokens x{t.x_integers + m * w.columns, t.x_scales + m * groups,
                         t.x_group_sums + m * groups, std::min<int64_t>(kInt8Tokens, t.tokens - m)};
      const int64_t last = std::min<int64_t>(m + kInt8Tokens, range.last_token);
      int8_gemv_tokens<C, T, kInt8GemvTokens>(t, w, x, m, last, first, rows, prefetch);
    }
  }
}

}  // namespace tinyllm::TINYLLM_ISA

#endif
