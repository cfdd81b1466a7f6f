#include "attention_decode.h"

#include <algorithm>

#include "split_rows.h"
#include "query_rows.h"
#include "softmax_rows.h"
#include "sum_lanes.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

constexpr int kKeys = 4;                     // whose products with a query are summed side by side
constexpr int kRows = W == 16 ? 4 : 2;       // of queries that share a key in registers
constexpr int kVectors = 4;                  // of features whose sums stay in registers

// The products of R queries with N keys from the j-th on.
template <typename Rows, int R, int N>
void score_keys(const KeyValues& kv, const Places& at, int64_t j, int64_t dim, const float* q,
                int64_t width, float* scores) {
  static_assert(N == kKeys || N == 1);
  Floats sums[R][N] = {};
  const int64_t step = Rows::kScaled ? kv.group : dim;
  for (int64_t d0 = 0; d0 < dim; d0 += step) {
    Affine affine[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) affine[n] = Rows::affine(kv, at, j + n, d0 / step);
    for (int64_t d = d0; d < d0 + step; d += W) {
      Floats keys[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) keys[n] = numbers<Rows>(at.codes[j + n], d, affine[n]);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        Floats query = load(q + r * width + d);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[r][n] += query * keys[n];
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    float* to = scores + r * kSpan + j;
    if constexpr (N == kKeys) {
      store_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], to);
    } else {
      to[0] = sum(sums[r][0]);
    }
  }
}

// Calls `work` with R rows at a time, as a constant: `kRows`, and what is left over.
template <typename Work>
void by_rows(int64_t rows, Work work) {
  int64_t n = 0;
  for (; n + kRows <= rows; n += kRows) work(n, std::integral_constant<int, kRows>());
  if constexpr (kRows == 4) {
    if (n + 2 <= rows) work(n, std::integral_constant<int, 2>()), n += 2;
  }
  if (n < rows) work(n, std::integral_constant<int, 1>());
}

// Adds to the sums of R rows their weighted values, for N vectors of features from `d` on.
template <typename Rows, int R, int N>
void mix_values(const KeyValues& kv, const Places& at, int64_t first, int64_t last, int64_t dim,
                int64_t d, const float* weights, float* sums, int64_t width) {
  Floats found[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) found[r][n] = load(sums + r * width + d + n * W);
  }
  for (int64_t j = first; j < last; ++j) {
    if (d == 0) touch<Rows>(at, j, j + 1, dim);
    Affine affine{};
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const int64_t feature = d + n * W;
      if (Rows::kScaled && (n == 0 || kv.group_of(feature) != kv.group_of(feature - W))) {
        affine = Rows::affine(kv, at, j, kv.group_of(feature));
      }
      Floats values = numbers<Rows>(at.codes[j], feature, affine);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) found[r][n] += weights[r * kSpan + j] * values;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(sums + r * width + d + n * W, found[r][n]);
  }
}

template <typename Rows, int R>
void mix_rows(const KeyValues& kv, const Places& at, int64_t first, int64_t last, int64_t dim,
              const float* weights, float* sums, int64_t width) {
  int64_t d = 0;
  for (; d + kVectors * W <= dim; d += kVectors * W) {
    mix_values<Rows, R, kVectors>(kv, at, first, last, dim, d, weights, sums, width);
  }
  for (; d < dim; d += W) {
    mix_values<Rows, R, 1>(kv, at, first, last, dim, d, weights, sums, width);
  }
}

// A part on its way: the keys that its rows see, in the order of its rows.
struct Work {
  const AttentionTask& t;
  const AttentionPart& part;
  float* tile;    // rows that had to be unpacked
  float* q;       // rows of queries
  float* scores;  // kSpan for each row

  int64_t count() const { return part.last - part.first; }

  // D in whole vectors: rows that end within one were unpacked, with zeros at the end.
  int64_t dim() const { return (t.dim + W - 1) / W * W; }

  // The keys from `first` to `last` of this part that row n sees.
  void clip(int64_t n, int64_t& first, int64_t& last) const {
    const Request request(t, part.block.request);
    const Seen seen(t, request, (part.block.first + n) / t.group());
    first = std::clamp(seen.first - part.first, first, last);
    last = std::clamp(seen.last - part.first, first, last);
  }

  // Calls `work` with the rows from `first` to `last` of this part of `kv`, a tile at a time.
  template <typename Each>
  void tiles(const KeyValues& kv, Each each) const {
    for (int64_t j = 0; j < count(); j += kTile) {
      const int64_t rows = std::min(kTile, count() - j);
      const Places at(t, kv, part.block.request, part.block.kv_head, part.first + j, rows);
      with_split_rows(t, kv, at, rows, tile,
                      [&](auto how, const Places& there) { each(how, there, j, rows); });
    }
  }
};

void score(const Work& w) {
  const int64_t width = w.t.width();
  w.tiles(w.t.k, [&]<typename Rows>(Rows, const Places& at, int64_t first, int64_t count) {
    by_rows(w.part.block.rows, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
      const float* q = w.q + row * width;
      float* scores = w.scores + row * kSpan + first;
      int64_t j = 0;
      for (; j + kKeys <= count; j += kKeys) {
        if (row == 0) touch<Rows>(at, j, j + kKeys, w.dim());
        score_keys<Rows, R, kKeys>(w.t.k, at, j, w.dim(), q, width, scores);
      }
      for (; j < count; ++j) score_keys<Rows, R, 1>(w.t.k, at, j, w.dim(), q, width, scores);
    });
  });
}

void weigh(const Work& w, Partial& found) {
  for (int64_t n = 0; n < w.part.block.rows; ++n) {
    int64_t first = 0, last = w.count();
    w.clip(n, first, last);
    float* scores = w.scores + n * kSpan + first;
    if (w.t.mask) add_mask(w.t, w.part.block, n, w.part.first + first, last - first, scores);
    found.tops[n] = highest(scores, last - first, kUnseen);
    found.totals[n] = to_weights(scores, last - first, base_of(found.tops[n]));
  }
}

void mix(const Work& w, Partial& found) {
  const int64_t width = w.t.width(), rows = w.part.block.rows;
  std::fill_n(found.sums, rows * width, 0.0f);
  w.tiles(w.t.v, [&]<typename Rows>(Rows, const Places& at, int64_t tile, int64_t count) {
    by_rows(rows, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
      int64_t firsts[R], lasts[R];
      bool all = true;
      for (int r = 0; r < R; ++r) {
        firsts[r] = tile, lasts[r] = tile + count;
        w.clip(row + r, firsts[r], lasts[r]);
        all &= lasts[r] - firsts[r] == count;
      }
      const float* weights = w.scores + row * kSpan + tile;
      float* sums = found.sums + row * width;
      if (all) return mix_rows<Rows, R>(w.t.v, at, 0, count, w.dim(), weights, sums, width);
      // What a row does not see must not reach it, even as zero times NaN.
      for (int r = 0; r < R; ++r) {
        mix_rows<Rows, 1>(w.t.v, at, firsts[r] - tile, lasts[r] - tile, w.dim(),
                          weights + r * kSpan, sums + r * width, width);
      }
    });
  });
}

}  // namespace

int64_t decode_scratch(const AttentionTask& t) {
  return kTile * t.width() + kDecodeRows * (t.width() + kSpan);
}

void decode_part(const AttentionTask& t, const AttentionPart& part, Partial& found,
                 float* scratch) {
  float* q = scratch + kTile * t.width();
  const Work work{t, part, scratch, q, q + kDecodeRows * t.width()};
  load_queries(t, part.block, t.scale, q);
  if (splits(t, t.k)) split(q, part.block.rows * t.width());
  score(work);
  weigh(work, found);
  mix(work, found);
  if (splits(t, t.v)) join(found.sums, part.block.rows * t.width());
}

}  // namespace tinyllm::TINYLLM_TIER
