// The sizes of the tile registers of AMX.
#pragma once

#include <cstdint>

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kTileNumbers = 512;  // bfloat16 numbers of a tile register

// The rows of each tile register and the bytes of a row, by default the full size. Loads, stores
// and products leave out what lies beyond.
struct TileSizes {
  uint8_t rows[8] = {16, 16, 16, 16, 16, 16, 16, 16};
  uint16_t row_bytes[8] = {64, 64, 64, 64, 64, 64, 64, 64};
};

}  // namespace tinyllm::TINYLLM_ISA
