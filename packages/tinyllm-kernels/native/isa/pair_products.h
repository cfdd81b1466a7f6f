// Products of pairs of 16-bit integers on x86-64.
#pragma once

#include <immintrin.h>

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

// Multiplies W pairs with W pairs, and adds both products of each pair to a 32-bit sum. With VNNI
// this takes one instruction. Otherwise a second instruction adds to the sum.
inline void add_pair_products(Ints& sums, Words a, Words b) {
#if defined(__AVX512VNNI__)
  sums = bit_cast<Ints>(
      _mm512_dpwssd_epi32(bit_cast<__m512i>(sums), bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif defined(__AVX512BW__)
  sums += bit_cast<Ints>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif defined(__AVXVNNI__)
  sums = bit_cast<Ints>(
      _mm256_dpwssd_avx_epi32(bit_cast<__m256i>(sums), bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#else
  sums += bit_cast<Ints>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#endif
  // GCC would first compute the products of other sums, in memory. This keeps the order.
  asm("" : "+v"(sums));
}

}  // namespace tinyllm::TINYLLM_ISA
