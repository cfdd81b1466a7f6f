// Unpackers of panels: they write the tiles that `BlockProduct` multiplies.
#pragma once

#include <algorithm>

#include "matmul/bfloat16/weight_tiles.h"

namespace tinyllm::TINYLLM_TIER {

// Asks for a line that is written later. Stores wait for their lines in order.
inline void prefetch_to_write(const void* line) {
  asm volatile("prefetchw (%0)" ::"r"(line) : "memory");
}

// Unpacks panels of codes, a vector of codes at a time. So the caller can do it between the
// products of another panel, and the processor computes both at once.
//
// A loop of products copies an object of this class to a local variable, because the compiler
// assumes that tile instructions change other memory.
template <Codes C, typename T>
class CodeUnpacker {
 public:
  // Begins a panel of two tiles of rows. `memory` has `unpack_floats` floats for each. The vectors
  // of codes will be spread over `calls` of `step`.
  void begin(const TileOfRows (&tiles)[2], uint16_t* panel, float* memory, int64_t calls) {
    const Weights& w = *tiles[0].w;
    group_tiles_ = w.group / kStepColumns, groups_ = w.columns / w.group;
    has_next_ = tiles[1].rows > 0;
    if (has_next_) next_ = Rows(tiles[1], memory), next_to_ = panel + kTileNumbers;
    rows_ = Rows(tiles[0], memory + unpack_floats(*tiles[1].w)), to_ = panel;
    const int64_t vectors = (has_next_ ? 2 : 1) * groups_ * group_tiles_ * Rows::kTileVectors;
    burst_ = static_cast<int>(calls > 0 ? (vectors + calls - 1) / calls : 0);
    period_ = static_cast<int>(std::max<int64_t>(calls / vectors, 1));
    wait_ = period_;
    is_done_ = false;
    group_ = 0;
    begin_group();
  }

  // Unpacks the vectors that are due.
  [[gnu::always_inline]] void step(int) {
    if (--wait_ > 0) return;
    wait_ = period_;
    for (int n = burst_; n > 0 && !is_done_; --n) unpack_vector();
  }

  // Unpacks the rest of the panel.
  void finish() {
    while (!is_done_) unpack_vector();
  }

 private:
  using Rows = RowsOfCodes<C, T>;

  [[gnu::always_inline]] void begin_group() {
    rows_.begin_group(group_);
    tiles_left_ = group_tiles_, vectors_left_ = Rows::kTileVectors;
  }

  [[gnu::always_inline]] void unpack_vector() {
    rows_.template prefetch<3>(kAheadOfCodes);
    rows_.unpack_vector(to_);
#pragma GCC unroll 4
    for (int p = 0; p < Rows::kVectorRows; ++p, to_ += kStepColumns) {
      prefetch_to_write(to_ + 2 * kStepNumbers);
    }
    if (--vectors_left_ == 0) end_tile();
  }

  [[gnu::always_inline]] void end_tile() {
    vectors_left_ = Rows::kTileVectors;
    to_ += kStepNumbers - kTileNumbers;
    if (--tiles_left_ > 0) return;
    if (++group_ == groups_) {
      is_done_ = !has_next_;
      if (is_done_) return;
      rows_ = next_, to_ = next_to_;
      has_next_ = false;
      group_ = 0;
    }
    begin_group();
  }

  Rows rows_, next_;  // `next_` if `has_next_`
  uint16_t *to_ = nullptr, *next_to_ = nullptr;
  bool has_next_ = false, is_done_ = true;
  int64_t group_ = 0, groups_ = 0;
  int group_tiles_ = 0, tiles_left_ = 0, vectors_left_ = 0;
  int burst_ = 0, period_ = 1, wait_ = 1;
};

// Steps whose tiles a `StepUnpacker` keeps, and steps that it is ahead of the products.
inline constexpr int kStepsInMemory = 4, kStepsAhead = 2;

// Unpacks the tiles of a panel of codes right before their products. They stay in the first-level
// cache.
template <Codes C, typename T>
class StepUnpacker {
 public:
  // Begins a panel of two tiles of rows and unpacks its first tiles. `panel` has memory for
  // kStepsInMemory steps, which are used in turn. `memory` has `unpack_floats` floats for each
  // tile. The rows of the next panel are `panel_rows` further.
  StepUnpacker(const TileOfRows (&tiles)[2], uint16_t* panel, float* memory, int64_t panel_rows)
      : rows_{Rows(tiles[0], memory),
              Rows(tiles[1].rows > 0 ? tiles[1] : tiles[0], memory + unpack_floats(*tiles[0].w))},
        begin_(panel),
        end_(panel + kStepsInMemory * kStepNumbers),
        to_(panel),
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

  // The codes of the next panel come to the second-level cache meanwhile.
  [[gnu::always_inline]] void unpack_tile(Rows& rows, uint16_t* to) const {
#pragma GCC unroll 8
    for (int i = 0; i < Rows::kTileVectors; ++i, to += Rows::kVectorRows * kStepColumns) {
      rows.template prefetch<2>(next_panel_);
      rows.template prefetch<3>(kAheadOfCodes);
      rows.unpack_vector(to);
    }
  }

  [[gnu::always_inline]] void end_step() {
    to_ += kStepNumbers;
    if (to_ == end_) to_ = begin_;
    --steps_left_, --group_steps_left_;
    if (group_steps_left_ == 0 && steps_left_ > 0) begin_group();
  }

  Rows rows_[2];
  uint16_t *begin_, *end_, *to_;
  int64_t next_panel_;  // bytes from the codes of a row to those of the same row of the next panel
  int64_t steps_left_, group_ = 0;
  int group_steps_, group_steps_left_ = 0;
};

// Unpacks panels of all other formats. Has nothing to do between products.
class PlainUnpacker {
 public:
  void begin(const TileOfRows (&tiles)[2], uint16_t* panel, float* memory, int64_t) {
    for (const auto& [w, first, rows] : tiles) {
      if (rows > 0) unpack(*w, first, rows, panel, memory);
      panel += kTileNumbers;
    }
  }

  void step(int) {}
  void finish() {}

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
  with_codes(w, [&]<Codes C, typename T>() { work.template operator()<CodeUnpacker<C, T>>(); });
}

}  // namespace tinyllm::TINYLLM_TIER
