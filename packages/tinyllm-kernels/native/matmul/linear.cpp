#include "matmul/linear.h"

#include <algorithm>

#include "runtime/aligned.h"
#include "matmul/bfloat16/gemm.h"
#include "matmul/float/gemm.h"
#include "matmul/float/gemv.h"
#include "types.h"
#include "matmul/integer/dispatch.h"
#include "matmul/interleave.h"
#include "isa/load_store.h"
#include "matmul/bfloat16/amx.h"
#include "isa/vectors.h"
#include "matmul/formats.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

constexpr int kPartsAThread = 16;       // at least, for decoded tokens
constexpr int kBlockBytes = 384 << 10;  // of x, beside a panel in the second-level cache

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens of a block in which a token has so many bytes.
int64_t block_tokens(const LinearTask& t, int64_t bytes) {
  return std::min(std::max<int64_t>(kBlockBytes / bytes / 32 * 32, 32), t.rows);
}

int64_t block_rows(const LinearTask& t) {
  return block_tokens(t, std::min(t.w->columns, kFloatDepth) * int64_t{sizeof(float)});
}

// Whether the product takes w as it lies in memory.
bool lies_well(const LinearTask& t) {
  return !t.w->interleaved || (t.planes && t.w->interleaved == W);
}

template <typename Format>
void multiply_part(const LinearTask& t, const LinearRange& range, float* scratch) {
#if defined(TINYLLM_TILES)
  if (t.tiles) return multiply_in_registers<Format>(t, range, scratch);
#elif defined(TINYLLM_BFLOAT16)
  if (t.tiles) return multiply_tiles<Format>(t, range, scratch);
#endif
  if (t.phase == Phase::decode) return multiply_float_rows<Format>(t, range);
  multiply_float_panel<Format>(t, range, scratch);
}

}  // namespace

bool linear_takes_planes([[maybe_unused]] const Weights& w, [[maybe_unused]] Type type) {
#if defined(TINYLLM_INTEGERS)
  return type != Type::float32 && has_integers(w);
#else
  return false;
#endif
}

int linear_interleaves([[maybe_unused]] const Weights& w) {
#if defined(TINYLLM_INTEGERS)
  return has_integers(w) && w.rows % W == 0 ? W : 0;
#else
  return 0;
#endif
}

bool linear_takes_tiles([[maybe_unused]] Type type) {
#if defined(TINYLLM_BFLOAT16)
  return type == Type::bfloat16;
#else
  return false;
#endif
}

void linear_tiles([[maybe_unused]] const void* x, [[maybe_unused]] int64_t rows,
                  [[maybe_unused]] int columns, [[maybe_unused]] int64_t first,
                  [[maybe_unused]] int64_t last, [[maybe_unused]] uint32_t* tiles) {
#if defined(TINYLLM_TILES)
  pack_whole_tiles(static_cast<const uint16_t*>(x), rows, columns, first, last, tiles);
#elif defined(TINYLLM_BFLOAT16)
  pack_tiles(static_cast<const uint16_t*>(x), rows, columns, first, last, tiles);
#endif
}

void linear_planes([[maybe_unused]] const float* x, [[maybe_unused]] Phase phase,
                   [[maybe_unused]] const Weights& w, [[maybe_unused]] int64_t first,
                   [[maybe_unused]] int64_t last, [[maybe_unused]] const Planes& planes) {
#if defined(TINYLLM_INTEGERS)
  (w.bits == 4 ? make_planes<4> : make_planes<8>)(x, phase, w, first, last, planes);
#endif
}

LinearRange linear_range(const LinearTask& t, int64_t part) {
  const int64_t panels = ceil_div(t.w->rows, t.part_rows);
  const int64_t token = part / panels * t.part_tokens, row = part % panels * t.part_rows;
  return {token, std::min(token + t.part_tokens, t.rows), row,
          std::min<int64_t>(row + t.part_rows, t.w->rows)};
}

void linear_part(const LinearTask& t, int64_t part, float* scratch) {
  const LinearRange range = linear_range(t, part);
  Weights w = *t.w;
  LinearTask task = t;
  task.w = &w;
  if (!lies_well(t)) {
    w = plain_rows(*t.w, range.first_row, range.last_row, scratch);
    scratch += plain_room(*t.w, t.part_rows);
  }
#if defined(TINYLLM_INTEGERS)
  if (t.planes) {
    return (w.bits == 4 ? multiply_integers<4> : multiply_integers<8>)(task, range, scratch);
  }
#endif
  with_format(w, [&]<typename Format>() { multiply_part<Format>(task, range, scratch); });
}

void linear_rows(const Weights& w, const int32_t* ids, int64_t first, int64_t last, void* y,
                 Type type) {
  const Aligned<float> row = aligned<float>(w.columns);
  const Aligned<float> room = aligned<float>(w.interleaved ? plain_room(w, 1) : 0);
  with_format(w, [&]<typename Format>() {
    with_type(type, [&]<typename T>(T*) {
      for (int64_t n = first; n < last; ++n) {
        const uint32_t id = std::min<uint32_t>(ids[n], w.rows - 1);
        const Weights plain = w.interleaved ? plain_rows(w, id, id + 1, room.get()) : w;
        decode_row<Format>(plain, id, 0, w.columns, row.get());
        T* to = static_cast<T*>(y) + n * w.columns;
        for (int k = 0; k < w.columns; ++k) to[k] = from_float<T>(row[k]);
      }
    });
  });
}

// Of decoded tokens small parts: one that is held up leaves its last ones to the others. Of a prompt
// the parts are panels, and where there are too few of these, blocks of tokens as well.
void linear_plan(LinearTask& t, int threads) {
#if defined(TINYLLM_TILES)
  if (t.tiles) return plan_tiles(t, threads);
#endif
  const int64_t wanted = int64_t{kPartsAThread} * threads;
  if (t.planes || t.phase == Phase::decode) {
    t.part_rows = ceil_div(ceil_div(t.w->rows, wanted), W) * W;
    t.part_tokens = t.planes ? block_tokens(t, 2 * t.w->columns) : t.rows;
  } else if (t.tiles) {
    t.part_rows = t.rows <= kTileTokens && !t.w->interleaved ? kNearPanel : kPairPanel;
    const int64_t blocks = ceil_div(wanted, ceil_div(t.w->rows, t.part_rows));
    const int64_t tiles = ceil_div(t.rows, kTileTokens);
    t.part_tokens = std::max<int64_t>(ceil_div(tiles, blocks), 1) * kTileTokens;
  } else {
    t.part_rows = kFloatPanel;
    t.part_tokens = block_rows(t);
  }
}

int64_t linear_parts(const LinearTask& t) {
  return ceil_div(t.w->rows, t.part_rows) * ceil_div(t.rows, t.part_tokens);
}

int64_t linear_scratch(const LinearTask& t) {
  const int64_t plain = lies_well(t) ? 0 : plain_room(*t.w, t.part_rows);
#if defined(TINYLLM_INTEGERS)
  if (t.planes) return plain + integer_scratch(t);
#endif
#if defined(TINYLLM_TILES)
  if (t.tiles) return plain + tiles_scratch(t);
#endif
  if (t.phase == Phase::decode) return plain;
  if (t.tiles) return plain + panel_room(t.w->columns) + kPairPanel * kTileTokens;
  return plain + kFloatPanel * (std::min(t.w->columns, kFloatDepth) + block_rows(t));
}

void to_floats(const void* from, Type type, float* to, int64_t count) {
  with_type(type, [&]<typename T>(T*) {
    const T* numbers = static_cast<const T*>(from);
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, load_as_floats(numbers + i));
    for (; i < count; ++i) to[i] = to_float(numbers[i]);
  });
}

void group_sums(const float* x, int64_t groups, int group, float* sums) {
  for (int64_t g = 0; g < groups; ++g) {
    Floats total = {};
    for (int i = 0; i < group; i += W) total += load(x + g * group + i);
    sums[g] = sum(total);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
