#include "linear.h"

#include <algorithm>

#include "aligned.h"
#include "bfloat16_tiles.h"
#include "decode.h"
#include "half.h"
#include "integer_rows.h"
#include "kernels.h"
#include "numbers.h"
#include "put.h"
#include "vectors.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

constexpr int kPartsAThread = 16;  // at least, for a few rows of x
constexpr int kTilePanel = 48;  // rows of w that are unpacked to bfloat16 together
constexpr int kApart = 32;      // numbers between its rows: rows of 2 KB would share a cache set
constexpr int kPanel = 24;      // rows of w that are unpacked together
constexpr int kDepth = 2048;    // columns that are unpacked together, at most
constexpr int kBlockBytes = 384 << 10;  // of x, beside a panel in the second-level cache

// Rows of x and of w whose products are summed in registers: MR * NR sums and MR + 1 operands.
constexpr int MR = W == 8 ? 3 : 4;
constexpr int NR = W == 16 ? 6 : 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t block_rows(const LinearTask& t) {
  int64_t depth = std::min(t.w->columns, kDepth);
  int64_t rows = std::max<int64_t>(kBlockBytes / (depth * int64_t{sizeof(float)}) / MR * MR, MR);
  return std::min(rows, t.rows);
}

// A dense matrix, read with the interface of `Packed`: groups of W numbers, scale 1.
template <typename T>
struct Dense {
  using Row = const T*;
  static constexpr bool kScaled = false;
  static Affine affine(const Weights&, int64_t) { return {1, 0}; }
  static Row row(const Weights& w, int64_t n) { return static_cast<Row>(w.data) + n * w.columns; }
  static Floats raw(Row row, int k) { return load_as_floats(row + k); }
  static float one(Row row, int k) { return to_float(row[k]); }
};

template <Mode M, int Bits>
struct Coded : Packed<M, Bits> {
  using Row = const uint8_t*;
  static constexpr bool kScaled = true, kBiased = M == Mode::affine;
  static float one(Row, int) { return 0; }  // a row of codes is whole groups: there is no rest
  static void prefetch(Row row, int k) {
    __builtin_prefetch(row + int64_t{k} * Bits / 8 + kAhead);
  }
};

// One row of w times M rows of x.
template <typename Format, int M>
void multiply_row(const LinearTask& t, int64_t n, int64_t m0) {
  const Weights& w = *t.w;
  typename Format::Row row = Format::row(w, n);
  const int whole = w.columns / W * W;
  Floats total[M] = {};
  float rest[M] = {};
  if constexpr (Format::kScaled) {
    const int64_t groups = w.columns / w.group;
    for (int64_t g = 0; g < groups; ++g) {
      const int k0 = static_cast<int>(g) * w.group;
      Format::prefetch(row, k0);
      Floats sums[M] = {};
      for (int k = k0; k < k0 + w.group; k += W) {
        Floats codes = Format::raw(row, k);
        for (int m = 0; m < M; ++m) sums[m] += codes * load(t.x + (m0 + m) * w.columns + k);
      }
      Affine affine = Format::affine(w, n * groups + g);
      for (int m = 0; m < M; ++m) {
        total[m] += sums[m] * affine.scale;
        if constexpr (Format::kBiased) rest[m] += affine.bias * t.sums[(m0 + m) * groups + g];
      }
    }
  } else {
    for (int k = 0; k < whole; k += W) {
      Floats numbers = Format::raw(row, k);
      for (int m = 0; m < M; ++m) total[m] += numbers * load(t.x + (m0 + m) * w.columns + k);
    }
    for (int k = whole; k < w.columns; ++k) {
      for (int m = 0; m < M; ++m) rest[m] += Format::one(row, k) * t.x[(m0 + m) * w.columns + k];
    }
  }
  for (int m = 0; m < M; ++m) put(t, m0 + m, n, sum(total[m]) + rest[m]);
}

// Columns `k0` to `k1` of row n as floats.
template <typename Format>
void decode_row(const Weights& w, int64_t n, int k0, int k1, float* to) {
  typename Format::Row row = Format::row(w, n);
  if constexpr (Format::kScaled) {
    const int64_t groups = w.columns / w.group;
    for (int k = k0; k < k1; k += w.group) {
      Affine affine = Format::affine(w, n * groups + k / w.group);
      for (int i = 0; i < w.group; i += W) {
        store(to + k - k0 + i, Format::raw(row, k + i) * affine.scale + affine.bias);
      }
    }
  } else {
    int k = k0;
    for (; k + W <= k1; k += W) store(to + k - k0, Format::raw(row, k));
    for (; k < k1; ++k) to[k - k0] = Format::one(row, k);
  }
}

// Adds to `out` (stride kPanel) the products of M rows of x with N rows of the panel.
template <int M, int N>
void multiply_tile(const float* x, int64_t x_stride, const float* panel, int depth, float* out) {
  Floats sums[M][N] = {};
  int k = 0;
  for (; k + W <= depth; k += W) {
    Floats xs[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) xs[m] = load(x + m * x_stride + k);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      Floats ws = load(panel + n * depth + k);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m][n] += xs[m] * ws;
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) {
      float total = sum(sums[m][n]);
      for (int rest = k; rest < depth; ++rest) {
        total += x[m * x_stride + rest] * panel[n * depth + rest];
      }
      out[m * kPanel + n] += total;
    }
  }
}

template <int M>
void multiply_rows(const float* x, int64_t x_stride, const float* panel, int rows, int depth,
                   float* out) {
  int n = 0;
  for (; n + NR <= rows; n += NR) {
    multiply_tile<M, NR>(x, x_stride, panel + n * depth, depth, out + n);
  }
  for (; n < rows; ++n) multiply_tile<M, 1>(x, x_stride, panel + n * depth, depth, out + n);
}

template <typename Format>
void multiply_panel(const LinearTask& t, int64_t part, float* scratch) {
  const Weights& w = *t.w;
  const auto [m0, m1, n0, n1] = linear_range(t, part);
  const int rows = static_cast<int>(n1 - n0);
  float* panel = scratch;
  float* out = scratch + kPanel * std::min(w.columns, kDepth);
  std::fill_n(out, (m1 - m0) * kPanel, 0.0f);
  for (int k0 = 0; k0 < w.columns; k0 += kDepth) {
    const int depth = std::min(kDepth, w.columns - k0);
    for (int n = 0; n < rows; ++n) decode_row<Format>(w, n0 + n, k0, k0 + depth, panel + n * depth);
    int64_t m = m0;
    for (; m + MR <= m1; m += MR) {
      multiply_rows<MR>(t.x + m * w.columns + k0, w.columns, panel, rows, depth,
                        out + (m - m0) * kPanel);
    }
    for (; m < m1; ++m) {
      multiply_rows<1>(t.x + m * w.columns + k0, w.columns, panel, rows, depth,
                       out + (m - m0) * kPanel);
    }
  }
  for (int64_t m = m0; m < m1; ++m) {
    for (int n = 0; n < rows; ++n) put(t, m, n0 + n, out[(m - m0) * kPanel + n]);
  }
}

#if defined(__AVX512VNNI__)
template <int Bits>
void multiply_part_in_integers(const LinearTask& t, int64_t part) {
  const LinearRange range = linear_range(t, part);
  with_type(t.w->type, [&]<typename T>(T*) {
    // Some rows at a time, which are still near when the next tokens want them.
    for (int64_t first = range.first_row; first < range.last_row; first += W) {
      const int64_t last = std::min(first + W, range.last_row);
      for (int64_t m = 0; m < t.rows; m += 8) {
        switch (std::min<int64_t>(t.rows - m, 8)) {
          case 1: multiply_in_integers<Bits, T, 1>(t, m, first, last); break;
          case 2: multiply_in_integers<Bits, T, 2>(t, m, first, last); break;
          case 3: multiply_in_integers<Bits, T, 3>(t, m, first, last); break;
          case 4: multiply_in_integers<Bits, T, 4>(t, m, first, last); break;
          case 5: multiply_in_integers<Bits, T, 5>(t, m, first, last); break;
          case 6: multiply_in_integers<Bits, T, 6>(t, m, first, last); break;
          case 7: multiply_in_integers<Bits, T, 7>(t, m, first, last); break;
          case 8: multiply_in_integers<Bits, T, 8>(t, m, first, last); break;
        }
      }
    }
  });
}
#endif

#if defined(__AVX512BF16__)
template <typename Format>
void multiply_part_in_tiles(const LinearTask& t, int64_t part, float* scratch) {
  const Weights& w = *t.w;
  const LinearRange range = linear_range(t, part);
  if constexpr (std::is_same_v<Format, Dense<BFloat16>>) {
    if (w.columns % 2 == 0) {
      const uint16_t* rows = static_cast<const uint16_t*>(w.data) + range.first_row * w.columns;
      return multiply_tiles(t, range, rows, w.columns, scratch);
    }
  }
  const int64_t stride = 2 * pairs_of(w.columns) + kApart;
  uint16_t* panel = reinterpret_cast<uint16_t*>(scratch);
  float* row = scratch + kTilePanel * stride / 2;
  row[w.columns] = 0;  // the other half of the last pair, where columns are odd
  for (int64_t n = range.first_row; n < range.last_row; ++n) {
    decode_row<Format>(w, n, 0, w.columns, row);
    BFloat16* to = reinterpret_cast<BFloat16*>(panel + (n - range.first_row) * stride);
    int64_t k = 0;
    for (; k + W <= w.columns; k += W) store_floats(to + k, load(row + k));
    for (; k <= w.columns; ++k) to[k] = from_float<BFloat16>(row[k]);
  }
  multiply_tiles(t, range, panel, stride, row + w.columns + W);
}
#endif

template <typename Format>
void multiply_part(const LinearTask& t, int64_t part, float* scratch) {
#if defined(__AVX512BF16__)
  if (t.tiles) return multiply_part_in_tiles<Format>(t, part, scratch);
#endif
  if (!is_few(t)) return multiply_panel<Format>(t, part, scratch);
  const LinearRange range = linear_range(t, part);
  for (int64_t n = range.first_row; n < range.last_row; ++n) {
    switch (t.rows) {
      case 1: multiply_row<Format, 1>(t, n, 0); break;
      case 2: multiply_row<Format, 2>(t, n, 0); break;
      case 3: multiply_row<Format, 3>(t, n, 0); break;
    }
  }
}

// Calls `work` with the format of a matrix.
template <typename Work>
void with_format(const Weights& w, Work work) {
  switch (w.mode) {
    case Mode::dense:
      return with_type(w.type, [&]<typename T>(T*) { work.template operator()<Dense<T>>(); });
    case Mode::mxfp4: return work.template operator()<Coded<Mode::mxfp4, 4>>();
    case Mode::mxfp8: return work.template operator()<Coded<Mode::mxfp8, 8>>();
    case Mode::nvfp4: return work.template operator()<Coded<Mode::nvfp4, 4>>();
    case Mode::affine: break;
  }
  switch (w.bits) {
    case 2: return work.template operator()<Coded<Mode::affine, 2>>();
    case 3: return work.template operator()<Coded<Mode::affine, 3>>();
    case 4: return work.template operator()<Coded<Mode::affine, 4>>();
    case 5: return work.template operator()<Coded<Mode::affine, 5>>();
    case 6: return work.template operator()<Coded<Mode::affine, 6>>();
    default: return work.template operator()<Coded<Mode::affine, 8>>();
  }
}

}  // namespace

bool linear_takes_planes([[maybe_unused]] const Weights& w, [[maybe_unused]] Type type) {
#if defined(__AVX512VNNI__)
  return multiplies_in_integers(w, type);
#else
  return false;
#endif
}

bool linear_takes_tiles([[maybe_unused]] Type type) {
#if defined(__AVX512BF16__)
  return type == Type::bfloat16;
#else
  return false;
#endif
}

void linear_tiles([[maybe_unused]] const void* x, [[maybe_unused]] int64_t rows,
                  [[maybe_unused]] int columns, [[maybe_unused]] int64_t first,
                  [[maybe_unused]] int64_t last, [[maybe_unused]] uint32_t* tiles) {
#if defined(__AVX512BF16__)
  pack_tiles(static_cast<const uint16_t*>(x), rows, columns, first, last, tiles);
#endif
}

void linear_planes([[maybe_unused]] const float* x, [[maybe_unused]] int64_t count,
                   [[maybe_unused]] const Weights& w, [[maybe_unused]] int8_t* planes,
                   [[maybe_unused]] float* scales) {
#if defined(__AVX512VNNI__)
  (w.bits == 4 ? to_planes<4> : to_planes<8>)(x, count, w.group, planes, scales);
#endif
}

void linear_part(const LinearTask& t, int64_t part, float* scratch) {
#if defined(__AVX512VNNI__)
  if (t.planes) {
    return (t.w->bits == 4 ? multiply_part_in_integers<4> : multiply_part_in_integers<8>)(t, part);
  }
#endif
  with_format(*t.w, [&]<typename Format>() { multiply_part<Format>(t, part, scratch); });
}

void linear_rows(const Weights& w, const int32_t* ids, int64_t first, int64_t last, void* y,
                 Type type) {
  const Aligned<float> row = aligned<float>(w.columns);
  with_format(w, [&]<typename Format>() {
    with_type(type, [&]<typename T>(T*) {
      for (int64_t n = first; n < last; ++n) {
        const uint32_t id = std::min<uint32_t>(ids[n], w.rows - 1);
        decode_row<Format>(w, id, 0, w.columns, row.get());
        T* to = static_cast<T*>(y) + n * w.columns;
        for (int k = 0; k < w.columns; ++k) to[k] = from_float<T>(row[k]);
      }
    });
  });
}

// Of a few rows of x small parts: one that is held up leaves its last ones to the others. Of many
// rows the parts are panels, and where there are too few of these, blocks of x as well.
void linear_plan(LinearTask& t, int threads) {
  const int64_t wanted = int64_t{kPartsAThread} * threads;
  if (is_few(t)) {
    t.part_rows = ceil_div(ceil_div(t.w->rows, wanted), W) * W;
    t.part_tokens = t.rows;
  } else if (t.tiles) {
    t.part_rows = kTilePanel;
    const int64_t blocks = ceil_div(wanted, ceil_div(t.w->rows, kTilePanel));
    const int64_t tiles = ceil_div(t.rows, kTileTokens);
    t.part_tokens = std::max<int64_t>(ceil_div(tiles, blocks), 1) * kTileTokens;
  } else {
    t.part_rows = kPanel;
    t.part_tokens = block_rows(t);
  }
}

int64_t linear_parts(const LinearTask& t) {
  return ceil_div(t.w->rows, t.part_rows) * ceil_div(t.rows, t.part_tokens);
}

LinearRange linear_range(const LinearTask& t, int64_t part) {
  const int64_t panels = ceil_div(t.w->rows, t.part_rows);
  const int64_t token = part / panels * t.part_tokens, row = part % panels * t.part_rows;
  return {token, std::min(token + t.part_tokens, t.rows), row,
          std::min<int64_t>(row + t.part_rows, t.w->rows)};
}

int64_t linear_scratch(const LinearTask& t) {
  if (is_few(t)) return 0;
  if (t.tiles) return kTilePanel * (pairs_of(t.w->columns) + kApart / 2 + kTileTokens) + t.w->columns + W;
  return kPanel * (std::min(t.w->columns, kDepth) + block_rows(t));
}

void group_sums(const float* x, int64_t groups, int group, float* sums) {
  for (int64_t g = 0; g < groups; ++g) {
    Floats total = {};
    for (int i = 0; i < group; i += W) total += load(x + g * group + i);
    sums[g] = sum(total);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
