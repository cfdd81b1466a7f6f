// The AMX matrix unit: eight tile registers of 16 rows of 64 bytes.
//
// One instruction multiplies two tiles of bfloat16 and adds the products to a tile of floats. It
// takes 16 cycles. The same work takes 256 cycles with vectors of floats.
//
//   A     16 rows of 32 numbers
//   B     16 rows of 16 pairs; the two numbers of a pair belong to consecutive rows of the matrix
//   Sums  16 rows of 16 floats: Sums += A B, with 32 products for each sum
//
// Another instruction multiplies bytes. A has 16 rows of 64 signed bytes, B 16 rows of 16 times
// four unsigned bytes, and Sums 16 rows of 16 integers of 32 bits, with 64 products for each sum.
//
// TINYLLM_AMX is defined if the instruction set of the file has the unit. With TINYLLM_AMX_MODEL,
// which only builds for checks define, the unit is a software model.
#pragma once

#if defined(__AMX_BF16__) || defined(TINYLLM_AMX_MODEL)
#define TINYLLM_AMX
#endif

#if defined(TINYLLM_AMX_MODEL)

#include "isa/tile_model.h"

#elif defined(__AMX_BF16__)

#include <cstdint>
#include <cstring>

#include "isa/tile_sizes.h"

namespace tinyllm::TINYLLM_ISA {

// The tile registers of the calling thread, configured for the lifetime of this object. To
// configure them takes some hundred cycles. The destructor releases them, so that the system need
// not save them when it preempts the thread.
//
// The instructions are written in assembly. GCC 12 has the intrinsics as macros that do not state
// which memory they access. It could then store the numbers of a tile only after loading the tile.
class TileRegisters {
 public:
  explicit TileRegisters(const TileSizes& sizes = {}) { configure(sizes); }
  ~TileRegisters() { asm volatile("tilerelease" ::: "memory"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  // Gives the tiles other sizes. All tiles become zero.
  void configure(const TileSizes& sizes) {
    const Configuration configuration(sizes);
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }

  template <int Tile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }

  // Loads the rows of a tile, which are `stride` bytes apart.
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

  // Adds the product of tile A, of signed bytes, and tile B, of unsigned bytes, to tile Sums, of
  // integers of 32 bits.
  template <int Sums, int A, int B>
  void multiply_add_bytes() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }

 private:
  // The operand of LDTILECFG.
  struct alignas(64) Configuration {
    explicit Configuration(const TileSizes& sizes) {
      std::memcpy(row_bytes, sizes.row_bytes, sizeof sizes.row_bytes);
      std::memcpy(rows, sizes.rows, sizeof sizes.rows);
    }

    uint8_t palette = 1, first_row = 0, reserved[14]{};
    uint16_t row_bytes[16]{};
    uint8_t rows[16]{};
  };
  static_assert(sizeof(Configuration) == 64);
};

}  // namespace tinyllm::TINYLLM_ISA

#endif
