#include "attention_decode.h"

#include <algorithm>

#include "few_row_products.h"
#include "query_rows.h"
#include "softmax_rows.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

// A part on its way.
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

  // Calls `each` with the rows of `kv` that this part looks at, a tile at a time: the way to read
  // them, where they are, the first of them, and how many.
  template <typename Each>
  void tiles(const KeyValues& kv, Each each) const {
    for (int64_t j = 0; j < count(); j += kTile) {
      const int64_t rows = std::min(kTile, count() - j);
      const Places at(t, kv, part.block.request, part.block.kv_head, part.first + j, rows);
      if (splits(kv)) {
        each(NibbleRows(), at, j, rows);
      } else {
        with_fast_rows(t, kv, at, rows, W, tile,
                       [&](auto how, const Places& there) { each(how, there, j, rows); });
      }
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
  if (splits(t.k)) split(q, part.block.rows * t.width());
  score(work);
  weigh(work, found);
  mix(work, found);
  if (splits(t.v)) join(found.sums, part.block.rows * t.width());
}

}  // namespace tinyllm::TINYLLM_TIER
