// Codes that integer kernels multiply, and their scales in interleaved rows.
//
// A weight is scale * code + bias in affine mode, and scale * number in modes mxfp4 and nvfp4.
// Twice a number of E2M1 is an integer from -12 to 12, so all are products of integers with a
// scale.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "isa/load_store.h"
#include "isa/vectors.h"
#include "matmul/formats.h"
#include "runtime/prefetch_distances.h"
#include "types.h"

namespace tinyllm::TINYLLM_ISA {

enum class Codes { uint4, uint8, e2m1 };

template <Codes C>
inline constexpr int kBits = C == Codes::uint8 ? 8 : 4;

// Codes in a word.
template <int Bits>
inline constexpr int kCodesPerWord = 32 / Bits;

// The unit of the integers that stand for codes.
template <Codes C>
inline constexpr float kUnit = C == Codes::e2m1 ? 0.5f : 1;

// Scales of mode mxfp4: powers of two.
struct E8M0 {
  uint8_t exponent;
};

// Scales of mode nvfp4: floats of 8 bits.
struct E4M3 {
  int8_t code;
};

// Groups that begin in 32 columns, at most: two of nvfp4, one of all other formats.
template <typename Scales>
inline constexpr int kGroupsOf32Columns = std::is_same_v<Scales, E4M3> ? 2 : 1;

// Scales and biases of a group of W rows.
struct Affines {
  Floats scales, biases;
};

// Scales and biases of W interleaved rows from `first` on. T is the type of the scales.
template <typename T>
class RowAffines {
 public:
  RowAffines() = default;
  RowAffines(const Weights& w, int64_t first) {
    const int64_t offset = first * (w.columns / w.group);
    scales_ = static_cast<const T*>(w.scales) + offset;
    if constexpr (kBiased) biases_ = static_cast<const T*>(w.biases) + offset;
  }

  Affines operator[](int64_t group) const {
    if constexpr (kBiased) {
      return {load_as_floats(scales_ + group * W), load_as_floats(biases_ + group * W)};
    } else if constexpr (std::is_same_v<T, E4M3>) {
      SignedBytes codes;
      std::memcpy(&codes, scales_ + group * W, sizeof codes);
      return {e4m3(codes), Floats{}};
    } else {
      Bytes exponents;
      std::memcpy(&exponents, scales_ + group * W, sizeof exponents);
      const Words words = widen(exponents);
      const Words smallest = bit_cast<Words>(words == 0) & 1u << 22;  // 2^-127 is subnormal
      return {bit_cast<Floats>(words << 23 | smallest), Floats{}};
    }
  }

  // Prefetches what follows the scales and the biases of a group, once a cache line. The function
  // is inlined, because GCC removes calls of functions that only prefetch.
  [[gnu::always_inline]] void prefetch(int64_t group) const {
    constexpr int64_t kGroupsOfLine = 64 / (W * sizeof(T)), kAhead = kScaleDistance / sizeof(T);
    if (group % kGroupsOfLine) return;
    __builtin_prefetch(scales_ + group * W + kAhead);
    if constexpr (kBiased) __builtin_prefetch(biases_ + group * W + kAhead);
  }

 private:
  static constexpr bool kBiased = !std::is_same_v<T, E8M0> && !std::is_same_v<T, E4M3>;

  const T *scales_ = nullptr, *biases_ = nullptr;
};

// Returns the scale and the bias of the integers that kernels multiply: those that stand for codes,
// minus `offset`.
template <Codes C>
inline Affines affines_of_integers(Affines codes, float offset) {
  const Floats scales = codes.scales * kUnit<C>;
  return {scales, codes.biases + scales * offset};
}

// Calls `work.operator()<C, T>()` with the kind of the codes of w and the type of its scales. w must
// be a matrix that integer kernels multiply.
template <typename Work>
void with_codes(const Weights& w, Work work) {
  if (w.mode == Mode::mxfp4) return work.template operator()<Codes::e2m1, E8M0>();
  if (w.mode == Mode::nvfp4) return work.template operator()<Codes::e2m1, E4M3>();
  const auto with_scales = [&]<typename T>(T*) {
    if (w.bits == 4) return work.template operator()<Codes::uint4, T>();
    work.template operator()<Codes::uint8, T>();
  };
  if (w.type == Type::bfloat16) return with_scales(static_cast<BFloat16*>(nullptr));
  with_scales(static_cast<Float16*>(nullptr));
}

// Twice the numbers of E2M1, in the order of their codes.
inline constexpr int8_t kDoubledE2m1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#if defined(__AVX2__)

// Twice the number of each code of E2M1, plus 12. Each byte of `codes` is a code.
inline Words e2m1_bytes(Words codes) {
  __m128i table;
  std::memcpy(&table, kDoubledE2m1, sizeof table);
  table = _mm_add_epi8(table, _mm_set1_epi8(12));
#if defined(__AVX512BW__)
  return bit_cast<Words>(
      _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), bit_cast<__m512i>(codes)));
#else
  return bit_cast<Words>(
      _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bit_cast<__m256i>(codes)));
#endif
}

#endif

}  // namespace tinyllm::TINYLLM_ISA
