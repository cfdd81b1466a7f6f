// The matrix unit of AMX: eight registers, each a tile of 16 rows of 64 bytes. One instruction
// multiplies two tiles of bfloat16 and adds the products to a tile of floats: 16 cycles for what
// takes vectors of floats 256.
//
// A tile of the first operand is 16 rows of 32 numbers; of the second, 16 rows of 16 pairs, which lie
// along the depth. Elsewhere than on AMX a build for checks may have the same in software.
#pragma once

#if defined(__AMX_BF16__) || defined(TINYLLM_MODELED_TILES)
#define TINYLLM_TILES
#endif

#if defined(TINYLLM_MODELED_TILES)

#include "isa/tile_model.h"

#elif defined(__AMX_BF16__)

#include <cstdint>

namespace tinyllm::TINYLLM_TIER {

// The registers, of which a thread has one set. They are configured as long as this lives: that takes
// some hundred cycles, and a thread that has let go of them need not have them saved when the system
// takes its core.
//
// In assembly, because GCC 12 has its intrinsics as macros that name registers, and that do not say
// which memory they touch: it may move a store of a tile's numbers behind the load of the tile.
class TileRegisters {
 public:
  TileRegisters() { asm volatile("ldtilecfg %0" ::"m"(kWhole)); }
  ~TileRegisters() { asm volatile("tilerelease" ::: "memory"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  template <int Tile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }

  // Rows are `stride` bytes apart.
  template <int Tile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
  }

  template <int Tile>
  void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
  }

  // Adds the products of two tiles of bfloat16 to one of floats.
  template <int Sums, int A, int B>
  void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }

 private:
  // All of each register, as LDTILECFG reads it.
  struct alignas(64) Configuration {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Configuration) == 64);
  static constexpr Configuration kWhole = {
      1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
};

}  // namespace tinyllm::TINYLLM_TIER

#endif
