// The memory that a decode step reads, in order, so that rows are fetched before they are read.
#pragma once

#include <algorithm>

#include "attention/kv_rows.h"
#include "attention/plan.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_ISA {

// The rows of a part: first its keys, then its values, then the first keys of the part that its
// thread probably computes next. The last row stands for rows after the end.
class DecodeStream {
 public:
  // `next` may be null.
  DecodeStream(const AttentionTask& t, const AttentionPart& part, const AttentionPart* next)
      : prefetches_(row_distances().far && !part.keys.empty()),
        row_bytes_(bytes_of_row(t.k, t.dim)) {
    if (!prefetches_) return;
    const int64_t count = part.keys.count();
    const int64_t known = next ? std::min(kMaxAhead, next->keys.count()) : 0;
    add(t, t.k, part, count, 0);
    add(t, t.v, part, count, count);
    if (next) add(t, t.k, *next, known, 2 * count);
    const int64_t end = 2 * count + known;
    std::fill_n(rows_ + end, kMaxAhead - known, rows_[end - 1]);
    const PrefetchDistances bytes = row_distances();
    far_ = rows_ + std::clamp<int64_t>(bytes.far / row_bytes_, 1, kMaxAhead);
    near_ = rows_ + std::clamp<int64_t>(bytes.near / row_bytes_, 1, kMaxAhead);
  }

  // Fetches memory before row n of `rows` is read, which has the number `index` in the stream.
  // Without prefetches it reads a byte of each cache line of the row. Hardware prefetchers recognize
  // this order, and not that of a kernel that reads several rows side by side.
  template <typename Rows>
  void fetch(const RowPointers& rows, int64_t n, int64_t index, int64_t dim) const {
    constexpr int64_t kLine = 64;
    if (prefetches_) {
      for (int64_t byte = 0; byte < row_bytes_; byte += kLine) {
        __builtin_prefetch(far_[index] + byte, 0, 2);  // to the second-level cache
        __builtin_prefetch(near_[index] + byte);
      }
      return;
    }
    for (int64_t byte = 0; byte < dim * Rows::kBits / 8; byte += kLine) {
      static_cast<void>(*static_cast<const volatile char*>(rows.codes[n] + byte));
    }
  }

 private:
  static constexpr int64_t kMaxAhead = 64;  // rows

  // Sets rows `to` to `to + count` to the first keys or values of a part.
  void add(const AttentionTask& t, const KeyValues& kv, const AttentionPart& part, int64_t count,
           int64_t to) {
    const QueryTile& tile = part.tile;
    find_rows(t, kv.codes, tile.request, tile.kv_head, part.keys.first, count, rows_ + to);
  }

  static int64_t bytes_of_row(const KeyValues& kv, int64_t dim) {
    const int64_t bits = kv.mode == Mode::dense ? 8 * size_of(kv.type) : kv.bits;
    return std::max<int64_t>(dim * bits / 8, 1);
  }

  bool prefetches_;
  int64_t row_bytes_;
  const char* const* far_ = nullptr;   // the row to prefetch from afar while row 0 is read
  const char* const* near_ = nullptr;  // the row to prefetch shortly before it is read
  const char* rows_[2 * kDecodeSplit + kMaxAhead];
};

}  // namespace tinyllm::TINYLLM_ISA
