#include "attention/parts.h"

#include <algorithm>

#include "attention/decode_products.h"
#include "attention/query_rows.h"
#include "attention/softmax.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

// A part on its way: the rows of one query, which all see its keys.
struct Work {
  const AttentionTask& t;
  const AttentionPart& part;
  float* tile;    // rows that had to be unpacked
  float* q;       // rows of queries
  float* scores;  // kSpan for each row

  int64_t count() const { return part.last - part.first; }

  // D in whole vectors: rows that end within one were unpacked, with zeros at the end.
  int64_t dim() const { return (t.dim + W - 1) / W * W; }

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
    float* scores = w.scores + n * kSpan;
    if (w.t.mask) add_mask(w.t, w.part.block, n, w.part.first, w.count(), scores);
    found.tops[n] = highest(scores, w.count(), kUnseen);
    found.totals[n] = to_weights(scores, w.count(), base_of(found.tops[n]));
  }
}

void mix(const Work& w, Partial& found) {
  const int64_t width = w.t.width(), rows = w.part.block.rows;
  std::fill_n(found.sums, rows * width, 0.0f);
  w.tiles(w.t.v, [&]<typename Rows>(Rows, const Places& at, int64_t tile, int64_t count) {
    by_rows(rows, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
      mix_rows<Rows, R>(w.t.v, at, count, w.dim(), w.scores + row * kSpan + tile,
                        found.sums + row * width, width);
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
