// The AMX matrix unit: eight tile registers of 16 rows of 64 bytes.
//
// One instruction multiplies two tiles of bfloat16 and adds the products to a tile of floats. It
// takes 16 cycles. The same work takes 256 cycles with vectors of floats.
//
//   A     16 rows of 32 numbers
//   B     16 rows of 16 pairs; the two numbers of a pair belong to consecutive rows of the matrix
//   Sums  16 rows of 16 floats: Sums += A B, with 32 products for each sum
//
// TINYLLM_TILES is defined if the unit exists. With TINYLLM_MODELED_TILES, which only builds for
// checks define, the unit is a software model.
#pragma once

#if defined(__AMX_BF16__) || defined(TINYLLM_MODELED_TILES)
#define TINYLLM_TILES
#endif

#if defined(TINYLLM_MODELED_TILES)

#include "isa/tile_model.h"

#elif defined(__AMX_BF16__)

#include <cstdint>

namespace tinyllm::TINYLLM_TIER {

// The tile registers of the calling thread, configured for the lifetime of this object. To
// configure them takes some hundred cycles. The destructor releases them, so that the system need
// not save them when it preempts the thread.
//
// The instructions are written in assembly. GCC 12 has the intrinsics as macros that do not state
// which memory they access. It could then store the numbers of a tile only after loading the tile.
class TileRegisters {
 public:
  TileRegisters() { asm volatile("ldtilecfg %0" ::"m"(kFullTiles)); }
  ~TileRegisters() { asm volatile("tilerelease" ::: "memory"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  template <int Tile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }

  // Loads 16 rows of 64 bytes that are `stride` bytes apart.
  template <int Tile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
  }

  // The same for memory that is read once: it does not displace the first-level cache.
  template <int Tile>
  void load_streamed(const void* from, int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
  }

  template <int Tile>
  void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
  }

  // Adds the product of tiles A and B, of bfloat16, to tile Sums, of floats.
  template <int Sums, int A, int B>
  void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }

 private:
  // The operand of LDTILECFG. It gives all eight tiles their full size.
  struct alignas(64) Configuration {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Configuration) == 64);
  static constexpr Configuration kFullTiles = {
      1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
};

}  // namespace tinyllm::TINYLLM_TIER

#endif
