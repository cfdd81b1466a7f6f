// The micro-kernel of the matrix unit: a micro-tile of 32 tokens by a panel of 32 rows of w.
#pragma once

#include <algorithm>
#include <utility>

#include "ceil_div.h"
#include "isa/tile_registers.h"
#include "matmul/bfloat16/amx_packers.h"
#include "matmul/bfloat16/amx_results.h"
#include "matmul/linear.h"

namespace tinyllm::TINYLLM_ISA {

// A tile store takes 0.2 us longer if the matrix unit has stored nothing for a microsecond. So long
// sums store an operand to unused memory after this many steps.
inline constexpr int kStepsBetweenStores = 12;

inline int64_t steps_of(const LinearTask& t) { return ceil_div(t.w->columns, kStepColumns); }

// No work beside the products of a micro-tile.
struct NoWork {
  void step(int) {}
};

// Computes micro-tiles one after the other. The results of a micro-tile are rounded and stored
// while the next one is multiplied.
//
// Tile registers 0 to 3 have the sums: of tokens 0-15 and rows 0-15 of the panel, of tokens 0-15
// and rows 16-31, of tokens 16-31 and rows 0-15, of tokens 16-31 and rows 16-31. Registers 4 and 5
// have tokens, 6 and 7 rows of w.
class AmxMicroKernel {
  // The sums of a micro-tile, and a cache line: at a distance of 4 KB the loads of one micro-tile's
  // sums would wait for the stores of the other's.
  static constexpr int kSums = kTokenTile * kSumColumns + W;

 public:
  // Floats of memory.
  static constexpr int kFloats = 2 * kSums + kTileNumbers / 2;

  AmxMicroKernel(const LinearTask& t, float* memory)
      : t_(t),
        steps_(steps_of(t)),
        tokens_a_step_(ceil_div(kTokenTile, std::max<int64_t>(steps_, 1))),
        x_stride_(t.x_stride * static_cast<int64_t>(sizeof(BFloat16))),
        y_stride_(t.y_stride * static_cast<int64_t>(sizeof(BFloat16))),
        sums_(memory),
        other_sums_(sums_ + kSums),
        unused_(other_sums_ + kSums) {}

  // Multiplies `tokens` <= 32 tokens from `token` on by the panel of w from `row` on. Calls
  // `beside.step(0)` and `beside.step(1)` in each step, between products of tiles.
  template <typename Beside>
  void multiply(int64_t token, int64_t tokens, int64_t row, PanelTiles panel, Beside& beside) {
    constexpr int64_t sum_stride = kSumColumns * sizeof(float);  // bytes
    if (tokens != tokens_) registers_.configure(sizes_of_micro_tile(tokens));
    tokens_ = tokens;
    registers_.zero<0>(), registers_.zero<1>();
    if (tokens > kTileRows) {
      registers_.zero<2>(), registers_.zero<3>();
      multiply_tiles<true>(token, row, panel, beside);
    } else {
      multiply_tiles<false>(token, row, panel, beside);
    }
    previous_.store_all();
    registers_.store<0>(sums_, sum_stride);
    registers_.store<1>(sums_ + W, sum_stride);
    if (tokens > kTileRows) {
      float* upper_sums = sums_ + kTileRows * kSumColumns;
      registers_.store<2>(upper_sums, sum_stride);
      registers_.store<3>(upper_sums + W, sum_stride);
    }
    previous_ = AmxResults(t_, token, tokens, row, sums_);
    std::swap(sums_, other_sums_);
  }

  // Stores the results of the last micro-tile.
  void finish() { previous_.store_all(); }

 private:
  // kHasUpperTokens is true if the micro-tile has more than 16 tokens. The state of the loop is
  // copied to local variables, because the compiler assumes that tile instructions change other
  // memory.
  template <bool kHasUpperTokens, typename Beside>
  void multiply_tiles(int64_t token, int64_t row, PanelTiles panel, Beside& work) {
    constexpr int64_t tile_stride = 64;  // bytes
    const int64_t x_stride = x_stride_, y_stride = y_stride_, tokens = tokens_;
    const int64_t tokens_a_step = tokens_a_step_, steps = steps_;
    const char* x = reinterpret_cast<const char*>(t_.x_unpacked) + token * x_stride;
    const char* y =
        static_cast<const char*>(t_.y) + token * y_stride + row * int64_t{sizeof(BFloat16)};
    const uint16_t* w = panel.begin;
    AmxResults previous = previous_;
    Beside beside = work;
    TileRegisters& registers = registers_;
    float* unused = unused_;
    for (int64_t step = 0; step < steps; ++step) {
      registers.load_streamed<6>(w, tile_stride);
      registers.load_streamed<4>(x, x_stride);
      if constexpr (kHasUpperTokens) {
        registers.load_streamed<5>(x + kTileRows * x_stride, x_stride);
      }
      registers.load_streamed<7>(w + kTileNumbers, tile_stride);
      registers.multiply_add<0, 4, 6>();
      if constexpr (!kHasUpperTokens) beside.step(0);
      registers.multiply_add<1, 4, 7>();
      if constexpr (kHasUpperTokens) {
        beside.step(0);
        registers.multiply_add<2, 5, 6>();
        registers.multiply_add<3, 5, 7>();
      }
      beside.step(1);
      if (step % kStepsBetweenStores == kStepsBetweenStores - 1) {
        registers.store<7>(unused, tile_stride);
      }
      if (step < tokens) prefetch_to_write(y + step * y_stride);
      previous.store(tokens_a_step);
      x += kStepColumns * sizeof(BFloat16);
      w += kStepNumbers;
      if (w == panel.end) w = panel.begin;
    }
    previous_ = previous, work = beside;
  }

  // Sizes of the tile registers for `tokens` <= 32 tokens.
  static TileSizes sizes_of_micro_tile(int64_t tokens) {
    TileSizes sizes;
    const auto lower = static_cast<uint8_t>(std::min<int64_t>(tokens, kTileRows));
    const auto upper = static_cast<uint8_t>(tokens > kTileRows ? tokens - kTileRows : kTileRows);
    sizes.rows[0] = sizes.rows[1] = sizes.rows[4] = lower;
    sizes.rows[2] = sizes.rows[3] = sizes.rows[5] = upper;
    return sizes;
  }

  TileRegisters registers_;
  const LinearTask& t_;
  const int64_t steps_, tokens_a_step_;
  const int64_t x_stride_, y_stride_;  // bytes
  int64_t tokens_ = kTokenTile;        // for which the registers are configured
  AmxResults previous_;
  float *sums_, *other_sums_, *unused_;
};

}  // namespace tinyllm::TINYLLM_ISA
