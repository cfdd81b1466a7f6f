// Products of queries with the codes of keys, and of weights with the codes of values, for decode
// steps. Pairs of 16-bit integers are multiplied and added in one instruction with VNNI, or in two.
//
// Codes of `Bits` bits, 8 or 4, are read as words of 16 bits. A shift and masks split two words
// into pairs of codes, and no code has to change its lane.
#pragma once

#include "attention/integers.h"
#include "isa/pair_products.h"
#include "isa/transpose.h"

namespace tinyllm::TINYLLM_ISA {

// Codes in a word.
template <int Bits>
inline constexpr int kWordCodes = 16 / Bits;

// The factor of code `i` of a word after `split_words`: codes 1 and 3 of 4 bits stay shifted left.
template <int Bits>
constexpr int unit_of_code(int i) {
  return Bits == 4 && i % 2 == 1 ? 16 : 1;
}

// Splits W pairs of words: pair n of `codes[i]` has code i of both words, times `unit_of_code`.
template <int Bits>
void split_words(Words words, Words (&codes)[kWordCodes<Bits>]) {
  using HalfWords [[gnu::vector_size(4 * W)]] = uint16_t;
  const Words upper = bit_cast<Words>(bit_cast<HalfWords>(words) >> 8);
  if constexpr (Bits == 8) {
    codes[0] = words & 0x00ff00ff, codes[1] = upper;
  } else {
    codes[0] = words & 0x000f000f, codes[1] = words & 0x00f000f0;
    codes[2] = upper & 0x000f000f, codes[3] = upper & 0x00f000f0;
  }
}

// Lane n of `low` has word n of a and of b, and lane n of `high` has word n + W of both.
inline void pair_words(Words a, Words b, Words& low, Words& high) {
#if defined(__AVX512F__)
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i x = _mm512_permutexvar_epi64(order, bit_cast<__m512i>(a));
  const __m512i y = _mm512_permutexvar_epi64(order, bit_cast<__m512i>(b));
  low = bit_cast<Words>(_mm512_unpacklo_epi16(x, y));
  high = bit_cast<Words>(_mm512_unpackhi_epi16(x, y));
#else
  const __m256i x = _mm256_permute4x64_epi64(bit_cast<__m256i>(a), 0b11'01'10'00);
  const __m256i y = _mm256_permute4x64_epi64(bit_cast<__m256i>(b), 0b11'01'10'00);
  low = bit_cast<Words>(_mm256_unpacklo_epi16(x, y));
  high = bit_cast<Words>(_mm256_unpackhi_epi16(x, y));
#endif
}

// Alternates the lanes of a and b: 2 W numbers, whose first half is `a` afterwards.
inline void alternate(Floats& a, Floats& b) {
  constexpr std::make_integer_sequence<int, W> lanes;
  const Words x = bit_cast<Words>(a), y = bit_cast<Words>(b);
  a = bit_cast<Floats>(transposing::zip<false>(x, y, lanes));
  b = bit_cast<Floats>(transposing::zip<true>(x, y, lanes));
}

// The sums of products of R queries with `columns` pairs of words of W keys, which are W keys
// apart. A query has kWordCodes pairs for each column, in the order of `split_words`. Queries are
// `stride` pairs apart.
template <int Bits, int R>
void multiply_key_codes(const IntegerPair* queries, int64_t stride, const uint32_t* keys,
                        int64_t columns, Floats (&products)[R]) {
  constexpr int codes_of_word = kWordCodes<Bits>;
  constexpr int kSums = 4;  // of a query, so that no sum waits for the sum before it
  Ints sums[R][kSums];
#pragma GCC unroll 4
  for (auto& of_query : sums) {
#pragma GCC unroll 4
    for (Ints& sum : of_query) sum = Ints{};
  }
  for (int64_t column = 0; column < columns; column += kSums / codes_of_word) {
#pragma GCC unroll 4
    for (int i = 0; i < kSums; i += codes_of_word, keys += W, queries += codes_of_word) {
      Words codes[codes_of_word];
      split_words<Bits>(load_words(keys), codes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < codes_of_word; ++c) {
          const Words pair = Words{} + queries[r * stride + c].bits;
          add_pair_products(sums[r][i + c], pair, codes[c]);
        }
      }
    }
  }
  constexpr float odd_unit = 1.0f / unit_of_code<Bits>(1);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const Floats even = __builtin_convertvector(sums[r][0] + sums[r][2], Floats);
    const Floats odd = __builtin_convertvector(sums[r][1] + sums[r][3], Floats);
    products[r] = even + odd * odd_unit;
  }
}

// Sums over values of R rows of weights times the codes of 4 W bytes: two halves of W words.
template <int Bits, int R>
struct ValueSums {
  static constexpr int kCodes = kWordCodes<Bits>;

  ValueSums() {
#pragma GCC unroll 8
    for (auto& of_half : sums) {
#pragma GCC unroll 4
      for (Ints& sum : of_half) sum = Ints{};
    }
  }

  // Adds the values at `a` and `b` times pair `n` of the weights of each row and half.
  [[gnu::always_inline]] void add(const char* a, const char* b,
                                  const IntegerPair* const (&weights)[R][2], int64_t n) {
    Words words[2];
    pair_words(load_words(a), load_words(b), words[0], words[1]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Words codes[kCodes];
      split_words<Bits>(words[half], codes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Words pair = Words{} + weights[r][half][n].bits;
#pragma GCC unroll 4
        for (int c = 0; c < kCodes; ++c) add_pair_products(sums[2 * r + half][c], codes[c], pair);
      }
    }
  }

  // The sums of a row and a half, times `scale`, in the order of the features.
  void read(int r, int half, float scale, Floats (&features)[kCodes]) const {
#pragma GCC unroll 4
    for (int c = 0; c < kCodes; ++c) {
      features[c] =
          __builtin_convertvector(sums[2 * r + half][c], Floats) * (scale / unit_of_code<Bits>(c));
    }
    if constexpr (kCodes == 2) {
      alternate(features[0], features[1]);
    } else {
      Floats &a = features[0], &b = features[1], &c = features[2], &d = features[3];
      alternate(a, c);
      alternate(b, d);
      alternate(a, b);
      alternate(c, d);
    }
  }

  Ints sums[2 * R][kCodes];
};

}  // namespace tinyllm::TINYLLM_ISA
