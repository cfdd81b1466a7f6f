// Codes of mxfp8 as pairs of bfloat16, with AVX512_VBMI. bfloat16 represents each number of E4M3,
// and its two bytes are looked up by the code, 64 codes at once.
#pragma once

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define TINYLLM_E4M3_PAIRS

#include <immintrin.h>

#include "matmul/formats.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kMxfp8Group = 32;  // columns

struct E4M3Table {
  constexpr E4M3Table() {
    const std::array<float, 256> numbers = all_e4m3();
    for (int code = 0; code < 128; ++code) {
      const auto bits = bit_cast<uint32_t>(numbers[code]);
      low[code] = bits >> 16 & 255, high[code] = bits >> 24;
      merge[code] = static_cast<uint8_t>(code / 2 + code % 2 * 64);
    }
  }

  // The bytes of the numbers without sign, in the order of their codes.
  alignas(64) uint8_t low[128]{}, high[128]{};
  // The position of each byte of 64 numbers in two vectors: their lower bytes, their upper bytes.
  alignas(64) uint8_t merge[128]{};
};

// Writes the numbers of one or two groups of codes.
template <int Groups>
inline void look_up_e4m3(const uint8_t* codes, Words (&numbers)[Groups]) {
  static constexpr E4M3Table kTable;
  const auto look_up = [](const uint8_t(&table)[128], __m512i index) {  // by its lower 7 bits
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
  };
  const auto* half = reinterpret_cast<const __m256i*>(codes);
  const __m512i index =
      Groups == 2 ? _mm512_loadu_si512(codes) : _mm512_zextsi256_si512(_mm256_loadu_si256(half));
  const __m512i low = look_up(kTable.low, index);
  constexpr int or_and = 0xf8;  // a | (b & c)
  const __m512i high =
      _mm512_ternarylogic_epi32(look_up(kTable.high, index), index, _mm512_set1_epi8(-128), or_and);
  for (int i = 0; i < Groups; ++i) {
    const __m512i positions = _mm512_load_si512(kTable.merge + 64 * i);
    numbers[i] = bit_cast<Words>(_mm512_permutex2var_epi8(low, positions, high));
  }
}

using Mxfp8 = Quantized<Mode::mxfp8, 8>;

// Returns a group of weights, from column k of row n of w on. The products of the numbers and the
// scale, a power of two, are exact, unless they are subnormal: these are cut off.
inline Words mxfp8_group(const Weights& w, int64_t n, int k) {
  Words numbers[1];
  look_up_e4m3(Mxfp8::row(w, n) + k, numbers);
  const float scale = Mxfp8::affine(w, (n * w.columns + k) / kMxfp8Group).scale;
  const Floats even = bit_cast<Floats>(numbers[0] << 16) * scale;
  const Floats odd = bit_cast<Floats>(numbers[0] & 0xffff0000) * scale;
  return bit_cast<Words>(even) >> 16 | (bit_cast<Words>(odd) & 0xffff0000);
}

}  // namespace tinyllm::TINYLLM_ISA

#endif
