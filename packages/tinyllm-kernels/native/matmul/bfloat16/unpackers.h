// Unpackers of panels: they write the tiles that `BlockProduct` multiplies.
#pragma once

#include <algorithm>

#include "matmul/bfloat16/weight_tiles.h"

namespace tinyllm::TINYLLM_TIER {

// Asks for a line that is written later. Stores wait for their lines in order.
inline void prefetch_to_write(const void* line) {
  asm volatile("prefetchw (%0)" ::"r"(line) : "memory");
}

// The tiles of a panel: of all its steps, or of some steps, whose memory is used in turn.
struct PanelTiles {
  PanelTiles(uint16_t* memory, int64_t steps) : begin(memory), end(memory + steps * kStepNumbers) {}

  uint16_t *begin, *end;
};

// Unpacks the tiles of a panel of codes shortly before their first products, between the products
// of other tiles: the processor computes both at once. They are then in the first-level cache.
//
// A loop of products copies an object of this class to a local variable, because the compiler
// assumes that tile instructions change other memory.
template <Codes C, typename T>
class StepUnpacker {
  // Steps that are unpacked ahead of the products, and steps whose tiles are kept for a single
  // product.
  static constexpr int kStepsAhead = 2, kStepsKept = 4;

 public:
  // Steps that a panel of `steps` has memory for if each tile is multiplied once.
  static int64_t steps_in_memory(int64_t steps) { return std::min<int64_t>(steps, kStepsKept); }

  // Begins a panel of two tiles of rows and unpacks its first tiles. `memory` has `unpack_floats`
  // floats for each tile. The rows of the next panel are `panel_rows` further.
  StepUnpacker(const TileOfRows (&tiles)[2], PanelTiles panel, float* memory, int64_t panel_rows)
      : rows_{Rows(tiles[0], memory),
              Rows(tiles[1].rows > 0 ? tiles[1] : tiles[0], memory + unpack_floats(*tiles[0].w))},
        panel_(panel),
        to_(panel.begin),
        next_panel_(panel_rows * tiles[0].w->columns * kBits<C> / 8),
        steps_left_(tiles[0].w->columns / kStepColumns),
        group_steps_(tiles[0].w->group / kStepColumns) {
    begin_group();
    for (int i = 0; i < kStepsAhead; ++i) step(0), step(1);
  }

  // Unpacks tile 0 or 1 of the next step.
  [[gnu::always_inline]] void step(int tile) {
    if (steps_left_ == 0) return;
    unpack_tile(rows_[tile], to_ + tile * kTileNumbers);
    if (tile == 1) end_step();
  }

 private:
  using Rows = RowsOfCodes<C, T>;

  [[gnu::always_inline]] void begin_group() {
    for (Rows& rows : rows_) rows.begin_group(group_);
    ++group_;
    group_steps_left_ = group_steps_;
  }

  // The codes of the next panel come to the second-level cache meanwhile, and the lines that are
  // written two steps later to the first-level cache.
  [[gnu::always_inline]] void unpack_tile(Rows& rows, uint16_t* to) const {
#pragma GCC unroll 8
    for (int i = 0; i < Rows::kTileVectors; ++i) {
      rows.template prefetch<2>(next_panel_);
      rows.template prefetch<3>(kAheadOfCodes);
      rows.unpack_vector(to);
#pragma GCC unroll 4
      for (int p = 0; p < Rows::kVectorRows; ++p, to += kStepColumns) {
        prefetch_to_write(to + 2 * kStepNumbers);
      }
    }
  }

  [[gnu::always_inline]] void end_step() {
    to_ += kStepNumbers;
    if (to_ == panel_.end) to_ = panel_.begin;
    --steps_left_, --group_steps_left_;
    if (group_steps_left_ == 0 && steps_left_ > 0) begin_group();
  }

  Rows rows_[2];
  PanelTiles panel_;
  uint16_t* to_;
  int64_t next_panel_;  // bytes from the codes of a row to those of the same row of the next panel
  int64_t steps_left_, group_ = 0;
  int group_steps_, group_steps_left_ = 0;
};

// Unpacks panels of all other formats, before their products.
class PlainUnpacker {
 public:
  static int64_t steps_in_memory(int64_t steps) { return steps; }

  PlainUnpacker(const TileOfRows (&tiles)[2], PanelTiles panel, float* memory, int64_t) {
    uint16_t* to = panel.begin;
    for (const auto& [w, first, rows] : tiles) {
      if (rows > 0) unpack(*w, first, rows, to, memory);
      to += kTileNumbers;
    }
  }

  void step(int) {}

 private:
  static void unpack(const Weights& w, int64_t first, int64_t rows, uint16_t* to, float* memory) {
    Weights plain = w;
    if (w.interleaved) plain = separate_rows(w, first, first + rows, memory);
    with_format(plain, [&]<typename Format>() { unpack_plain<Format>(plain, first, rows, to); });
  }
};

// Calls `work.operator()<Unpacker>()` with the class that unpacks w.
template <typename Work>
void with_unpacker(const Weights& w, Work work) {
  if (!supports_integers(w)) return work.template operator()<PlainUnpacker>();
  with_codes(w, [&]<Codes C, typename T>() { work.template operator()<StepUnpacker<C, T>>(); });
}

}  // namespace tinyllm::TINYLLM_TIER
