// A software model of the AMX matrix unit, equal to it bit for bit.
//
// Checks use it to run AMX kernels on machines without AMX. The model follows the description of
// TDPBF16PS in Intel's Software Developer's Manual. For each row of the result:
//
// - The products of the first numbers of all pairs are added up, and separately the products of the
//   second numbers, by fused multiply-add in the order of the pairs.
// - Both sums are added to each other, and then to the previous result.
// - Each operation rounds to the nearest. Subnormal inputs and results count as zero.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

// The same interface as in isa/tile_registers.h.
class TileRegisters {
 public:
  template <int Tile>
  void zero() {
    std::memset(tiles_[Tile], 0, sizeof tiles_[Tile]);
  }

  template <int Tile>
  void load(const void* from, int64_t stride) {
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(&tiles_[Tile][row], static_cast<const char*>(from) + row * stride, sizeof(Words));
    }
  }

  template <int Tile>
  void load_streamed(const void* from, int64_t stride) {
    load<Tile>(from, stride);
  }

  template <int Tile>
  void store(void* to, int64_t stride) const {
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(static_cast<char*>(to) + row * stride, &tiles_[Tile][row], sizeof(Words));
    }
  }

  template <int Sums, int A, int B>
  void multiply_add() {
    for (int row = 0; row < kRows; ++row) {
      Floats first_sums{}, second_sums{};
      for (int k = 0; k < W; ++k) {
        const Words pair = Words{} + tiles_[A][row][k];
        first_sums = fused_multiply_add(first(pair), first(tiles_[B][k]), first_sums);
        second_sums = fused_multiply_add(second(pair), second(tiles_[B][k]), second_sums);
      }
      const Floats previous = flush_subnormals(std::bit_cast<Floats>(tiles_[Sums][row]));
      const Floats products = flush_subnormals(first_sums + second_sums);
      tiles_[Sums][row] = std::bit_cast<Words>(flush_subnormals(previous + products));
    }
  }

 private:
  static constexpr int kRows = 16;
  static_assert(W == kRows);

  // Replaces subnormal numbers by zero of the same sign.
  static Floats flush_subnormals(Floats v) {
    const Words bits = std::bit_cast<Words>(v), signed_zero = bits & 0x80000000u;
    return std::bit_cast<Floats>((bits & 0x7f800000u) == 0 ? signed_zero : bits);
  }

  // The first or second bfloat16 number of each pair.
  static Floats first(Words pairs) { return flush_subnormals(std::bit_cast<Floats>(pairs << 16)); }
  static Floats second(Words pairs) {
    return flush_subnormals(std::bit_cast<Floats>(pairs & 0xffff0000u));
  }

  static Floats fused_multiply_add(Floats a, Floats b, Floats sum) {
    const __m512 fused = _mm512_fmadd_ps(std::bit_cast<__m512>(a), std::bit_cast<__m512>(b),
                                         std::bit_cast<__m512>(sum));
    return flush_subnormals(std::bit_cast<Floats>(fused));
  }

  Words tiles_[8][kRows] = {};
};

}  // namespace tinyllm::TINYLLM_TIER
