// The matrix unit of AMX in software, bit for bit, so that kernels which use it are checked on
// machines without one.
//
// After the description of TDPBF16PS in Intel's Software Developer's Manual: in each row of a tile
// the products of first and of second numbers of pairs are summed apart, by fused multiplications
// and additions in the order of the pairs; then both sums are added to each other, and to what was
// there. All of this rounds to the nearest, and takes and makes no subnormal numbers.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

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
  void store(void* to, int64_t stride) const {
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(static_cast<char*>(to) + row * stride, &tiles_[Tile][row], sizeof(Words));
    }
  }

  template <int Sums, int A, int B>
  void multiply_add() {
    for (int row = 0; row < kRows; ++row) {
      Floats firsts{}, seconds{};
      for (int k = 0; k < W; ++k) {
        const Words pair = Words{} + tiles_[A][row][k];
        firsts = multiplied(first(pair), first(tiles_[B][k]), firsts);
        seconds = multiplied(second(pair), second(tiles_[B][k]), seconds);
      }
      const Floats before = normal(std::bit_cast<Floats>(tiles_[Sums][row]));
      tiles_[Sums][row] = std::bit_cast<Words>(normal(before + normal(firsts + seconds)));
    }
  }

 private:
  static constexpr int kRows = 16;
  static_assert(W == kRows);

  // Zero, with its sign, where a number is subnormal.
  static Floats normal(Floats v) {
    const Words bits = std::bit_cast<Words>(v), zero = bits & 0x80000000u;
    return std::bit_cast<Floats>((bits & 0x7f800000u) == 0 ? zero : bits);
  }

  static Floats first(Words pairs) { return normal(std::bit_cast<Floats>(pairs << 16)); }
  static Floats second(Words pairs) {
    return normal(std::bit_cast<Floats>(pairs & 0xffff0000u));
  }

  static Floats multiplied(Floats a, Floats b, Floats sum) {
    const __m512 fused = _mm512_fmadd_ps(std::bit_cast<__m512>(a), std::bit_cast<__m512>(b),
                                         std::bit_cast<__m512>(sum));
    return normal(std::bit_cast<Floats>(fused));
  }

  Words tiles_[8][kRows] = {};
};

}  // namespace tinyllm::TINYLLM_TIER
