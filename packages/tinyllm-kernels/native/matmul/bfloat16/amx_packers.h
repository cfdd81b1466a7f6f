// Packers of panels. They dequantize weights and write the tiles of a panel shortly before their
// first products, between the products of other tiles: the processor computes both at once. The
// tiles are then in the first-level cache.
//
// A loop of products copies a packer to a local variable, because the compiler assumes that tile
// instructions change other memory.
#pragma once

#include <algorithm>

#include "ceil_div.h"
#include "matmul/bfloat16/amx_weight_tiles.h"

namespace tinyllm::TINYLLM_ISA {

// Asks for a line that is written later. Stores wait for their lines in order.
inline void prefetch_to_write(const void* line) {
  asm volatile("prefetchw (%0)" ::"r"(line) : "memory");
}

// The tiles of a panel: of all its steps, or of some steps, whose memory is used in turn.
struct PanelTiles {
  PanelTiles(uint16_t* memory, int64_t steps) : begin(memory), end(memory + steps * kStepNumbers) {}

  uint16_t *begin, *end;
};

// Steps that are packed ahead of the products, and steps whose tiles are kept for a single
// product.
inline constexpr int kStepsAhead = 2, kStepsKept = 4;

// Steps that a panel of `steps` has memory for if each tile is multiplied once.
inline int64_t steps_in_memory(int64_t steps) { return std::min<int64_t>(steps, kStepsKept); }

// The steps of a panel that are not packed yet, and where the next one is written.
struct StepsLeft {
  StepsLeft(PanelTiles panel, int64_t count) : panel(panel), to(panel.begin), count(count) {}

  [[gnu::always_inline]] void advance() {
    to += kStepNumbers;
    if (to == panel.end) to = panel.begin;
    --count;
  }

  // Where the tiles after the next kStepsAhead steps are written.
  [[gnu::always_inline]] uint16_t* later() const {
    uint16_t* tiles = to + kStepsAhead * kStepNumbers;
    return tiles < panel.end ? tiles : tiles - (panel.end - panel.begin);
  }

  PanelTiles panel;
  uint16_t* to;
  int64_t count;
};

// Packs panels of codes of 4 and 8 bits.
template <Codes C, typename T>
class CodePacker {
 public:
  // Begins a panel of two tiles of rows and packs its first tiles. `memory` has `packing_floats`
  // floats for each tile. The rows of the next panel are `panel_rows` further.
  CodePacker(const TileOfRows (&tiles)[2], PanelTiles panel, float* memory, int64_t panel_rows)
      : rows_{Rows(tiles[0], memory),
              Rows(tiles[1].rows > 0 ? tiles[1] : tiles[0], memory + packing_floats(*tiles[0].w))},
        left_(panel, tiles[0].w->columns / kStepColumns),
        next_panel_(Rows::reads_in_place(*tiles[0].w)
                        ? panel_rows * tiles[0].w->columns * kBits<C> / 8
                        : 0),
        group_steps_(kStepGroups > 1 ? 1 : tiles[0].w->group / kStepColumns) {
    begin_group();
    for (int i = 0; i < kStepsAhead; ++i) step(0), step(1);
  }

  // Packs tile 0 or 1 of the next step.
  [[gnu::always_inline]] void step(int tile) {
    if (left_.count == 0) return;
    pack_tile(rows_[tile], left_.to + tile * kTileNumbers, left_.later() + tile * kTileNumbers);
    if (tile == 1) end_step();
  }

 private:
  using Rows = RowsOfCodes<C, T>;

  static constexpr int kStepGroups = kGroupsOf32Columns<T>;

  [[gnu::always_inline]] void begin_group() {
    for (Rows& rows : rows_) rows.begin_group(group_);
    group_ += kStepGroups;
    group_steps_left_ = group_steps_;
  }

  // The codes of the next panel come to the second-level cache meanwhile, and the lines that are
  // written `later` to the first-level cache.
  [[gnu::always_inline]] void pack_tile(Rows& rows, uint16_t* to, const uint16_t* later) const {
#pragma GCC unroll 8
    for (int i = 0; i < Rows::kTileVectors; ++i) {
      // The second group of the step.
      if (kStepGroups > 1 && i == Rows::kTileVectors / 2) rows.begin_group(group_ - 1);
      rows.template prefetch<2>(next_panel_);
      rows.template prefetch<3>(kAheadOfCodes);
      rows.pack_vector(to);
#pragma GCC unroll 4
      for (int p = 0; p < Rows::kVectorRows; ++p, to += kStepColumns, later += kStepColumns) {
        prefetch_to_write(later);
      }
    }
  }

  [[gnu::always_inline]] void end_step() {
    left_.advance();
    if (--group_steps_left_ == 0 && left_.count > 0) begin_group();
  }

  Rows rows_[2];
  StepsLeft left_;
  int64_t next_panel_;  // bytes from the codes of a row to those of the same row of the next panel
  int64_t group_ = 0;
  int group_steps_, group_steps_left_ = 0;
};

// Packs panels of all other formats.
class PlainPacker {
 public:
  // See CodePacker.
  PlainPacker(const TileOfRows (&tiles)[2], PanelTiles panel, float* memory, int64_t panel_rows)
      : panel_rows_(panel_rows), left_(panel, ceil_div(tiles[0].w->columns, kStepColumns)) {
    for (int i = 0; i < 2; ++i) {
      const auto& [w, first, rows] = tiles[i];
      tiles_[i] = {*w, first, rows};
      if (!w->interleaved || rows <= 0) continue;
      tiles_[i].w = deinterleave_rows(*w, first, first + rows, memory + i * packing_floats(*w));
    }
    with_format(tiles_[0].w, [&]<typename Format>() { pack_ = pack_plain<Format>; });
    for (int i = 0; i < kStepsAhead; ++i) step(0), step(1);
  }

  void step(int tile) {
    if (left_.count == 0) return;
    const Tile& from = tiles_[tile];
    if (from.rows > 0) {
      pack_(from.w, from.first, from.rows, panel_rows_, column_, left_.to + tile * kTileNumbers);
    }
    if (tile == 0) return;
    left_.advance();
    column_ += kStepColumns;
  }

 private:
  struct Tile {
    Weights w;
    int64_t first, rows;
  };

  Tile tiles_[2];
  int64_t panel_rows_;
  StepsLeft left_;
  int column_ = 0;
  void (*pack_)(const Weights& w, int64_t first, int64_t rows, int64_t next_rows, int column,
                uint16_t* to);
};

// Calls `work.operator()<Packer>()` with the class that packs w.
template <typename Work>
void with_packer(const Weights& w, Work work) {
  if (!supports_integers(w)) return work.template operator()<PlainPacker>();
  with_codes(w, [&]<Codes C, typename T>() { work.template operator()<CodePacker<C, T>>(); });
}

}  // namespace tinyllm::TINYLLM_ISA
