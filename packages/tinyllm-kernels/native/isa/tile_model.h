// A software model of the AMX matrix unit, equal to it bit for bit.
//
// Checks use it to run AMX kernels on machines without AMX. The model follows the description of
// TDPBF16PS in Intel's Software Developer's Manual. For each row of the result:
//
// - The products of the first numbers of all pairs are added up, and separately the products of the
//   second numbers, by fused multiply-add in the order of the pairs.
// - Both sums are added to each other, and then to the previous result.
// - Each operation rounds to the nearest. Subnormal inputs and results count as zero.
//
// Products of bytes (TDPBSUD) are exact.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa/tile_sizes.h"
#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

// The same interface as in isa/tile_registers.h.
class TileRegisters {
 public:
  explicit TileRegisters(const TileSizes& sizes = {}) : sizes_(sizes) {}

  void configure(const TileSizes& sizes) {
    sizes_ = sizes;
    std::memset(tiles_, 0, sizeof tiles_);
  }

  template <int Tile>
  void zero() {
    std::memset(tiles_[Tile], 0, sizeof tiles_[Tile]);
  }

  template <int Tile>
  void load(const void* from, int64_t stride) {
    zero<Tile>();
    for (int row = 0; row < sizes_.rows[Tile]; ++row) {
      std::memcpy(&tiles_[Tile][row], static_cast<const char*>(from) + row * stride,
                  sizes_.row_bytes[Tile]);
    }
  }

  template <int Tile>
  void load_streamed(const void* from, int64_t stride) {
    load<Tile>(from, stride);
  }

  template <int Tile>
  void store(void* to, int64_t stride) const {
    for (int row = 0; row < sizes_.rows[Tile]; ++row) {
      std::memcpy(static_cast<char*>(to) + row * stride, &tiles_[Tile][row],
                  sizes_.row_bytes[Tile]);
    }
  }

  template <int Sums, int A, int B>
  void multiply_add() {
    for (int row = 0; row < sizes_.rows[Sums]; ++row) {
      Floats first_sums{}, second_sums{};
      for (int k = 0; k < W; ++k) {
        const Words pair = Words{} + tiles_[A][row][k];
        first_sums = fused_multiply_add(first(pair), first(row_of(B, k)), first_sums);
        second_sums = fused_multiply_add(second(pair), second(row_of(B, k)), second_sums);
      }
      const Floats previous = flush_subnormals(bit_cast<Floats>(row_of(Sums, row)));
      const Floats products = flush_subnormals(first_sums + second_sums);
      const Floats sums = flush_subnormals(previous + products);
      std::memcpy(tiles_[Sums][row], &sums, sizeof sums);
    }
  }

  template <int Sums, int A, int B>
  void multiply_add_bytes() {
    for (int row = 0; row < sizes_.rows[Sums]; ++row) {
      for (int k = 0; k < W; ++k) {
        for (int byte = 0; byte < 4; ++byte) {
          const int32_t a = static_cast<int8_t>(tiles_[A][row][k] >> 8 * byte);
          for (int n = 0; n < W; ++n) {
            tiles_[Sums][row][n] += static_cast<uint32_t>(a) * (tiles_[B][k][n] >> 8 * byte & 255);
          }
        }
      }
    }
  }

 private:
  static constexpr int kRows = 16;
  static_assert(W == kRows);

  Words row_of(int tile, int row) const {
    Words words;
    std::memcpy(&words, tiles_[tile][row], sizeof words);
    return words;
  }

  // Replaces subnormal numbers by zero of the same sign.
  static Floats flush_subnormals(Floats v) {
    const Words bits = bit_cast<Words>(v), signed_zero = bits & 0x80000000u;
    return bit_cast<Floats>((bits & 0x7f800000u) == 0 ? signed_zero : bits);
  }

  // The first or second bfloat16 number of each pair.
  static Floats first(Words pairs) { return flush_subnormals(bit_cast<Floats>(pairs << 16)); }
  static Floats second(Words pairs) {
    return flush_subnormals(bit_cast<Floats>(pairs & 0xffff0000u));
  }

  static Floats fused_multiply_add(Floats a, Floats b, Floats sum) {
    const __m512 fused =
        _mm512_fmadd_ps(bit_cast<__m512>(a), bit_cast<__m512>(b), bit_cast<__m512>(sum));
    return flush_subnormals(bit_cast<Floats>(fused));
  }

  TileSizes sizes_;
  // Not vectors: GCC 12 with sanitizers does not align all objects on the stack to 64 bytes.
  uint32_t tiles_[8][kRows][W] = {};
};

}  // namespace tinyllm::TINYLLM_ISA
