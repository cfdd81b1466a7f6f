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
  static constexpr int64_t kLine = 64;  // bytes

  // `next` may be null.
  DecodeStream(const AttentionTask& t, const AttentionPart& part, const AttentionPart* next)
      : prefetches_(row_distances().far && !part.keys.empty()),
        row_bytes_(bytes_of_row(t.k, t.dim)),
        keys_(part.keys.count()) {
    // Without prefetches, only kernels of quantized rows need their addresses.
    const bool packed = t.k.mode != Mode::dense || t.v.mode != Mode::dense;
    if (part.keys.empty() || !(prefetches_ || packed)) return;
    const int64_t count = keys_;
    const int64_t known = next ? std::min(kMaxAhead, next->keys.count()) : 0;
    add(t, t.k, part, count, 0);
    add(t, t.v, part, count, count);
    if (next) add(t, t.k, *next, known, 2 * count);
    if (next && prefetches_) prefetch_scales(t, *next);
    const int64_t end = 2 * count + known;
    std::fill_n(rows_ + end, kMaxAhead - known, rows_[end - 1]);
    const PrefetchDistances bytes = row_distances();
    far_ = rows_ + std::clamp<int64_t>(bytes.far / row_bytes_, 1, kMaxAhead);
    near_ = rows_ + std::clamp<int64_t>(bytes.near / row_bytes_, 1, kMaxAhead);
  }

  // The addresses of the keys and of the values of the part.
  const char* const* keys() const { return rows_; }
  const char* const* values() const { return rows_ + keys_; }

  // The number of the first value in the stream.
  int64_t first_value() const { return keys_; }

  bool prefetches() const { return prefetches_; }

  // Prefetches a cache line at `byte` of the rows that are read some time after rows `index` to
  // `index + count`. Only if `prefetches`.
  [[gnu::always_inline]] void prefetch_lines(int64_t index, int count, int64_t byte) const {
    const char *const *far = far_ + index, *const *near = near_ + index;
    for (int n = 0; n < count; ++n) {
      __builtin_prefetch(far[n] + byte, 0, 2);  // to the second-level cache
      __builtin_prefetch(near[n] + byte);
    }
  }

  // Fetches memory before row n of `rows` is read, which has the number `index` in the stream.
  // Without prefetches it reads a byte of each cache line of the row. Hardware prefetchers
  // recognize this order, and not that of a kernel that reads several rows side by side.
  template <typename Rows>
  void fetch(const RowPointers& rows, int64_t n, int64_t index, int64_t dim) const {
    if (prefetches_) {
      for (int64_t byte = 0; byte < row_bytes_; byte += kLine) prefetch_lines(index, 1, byte);
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

  // Prefetches the scales and biases of a part, which are too short for the distances of codes.
  static void prefetch_scales(const AttentionTask& t, const AttentionPart& part) {
    for (const KeyValues* kv : {&t.k, &t.v}) {
      for (const KeyValues::StridedRows* rows : {&kv->scales, &kv->biases}) {
        if (rows->data) prefetch_rows(t, *rows, part);
      }
    }
  }

  // Prefetches the first rows of a part, which are side by side in a page.
  static void prefetch_rows(const AttentionTask& t, const KeyValues::StridedRows& rows,
                            const AttentionPart& part) {
    const QueryTile& tile = part.tile;
    for_pages(t, tile.request, part.keys.first, std::min(kDecodeSplit, part.keys.count()),
              [&](int64_t n, int64_t end, int64_t page, int64_t slot) {
                const char* from = rows.at(page, tile.kv_head, slot);
                const int64_t bytes = (end - n) * rows.strides[2];
                for (int64_t byte = 0; byte < bytes; byte += kLine) {
                  __builtin_prefetch(from + byte, 0, 2);
                }
              });
  }

  static int64_t bytes_of_row(const KeyValues& kv, int64_t dim) {
    const int64_t bits = kv.mode == Mode::dense ? 8 * size_of(kv.type) : kv.bits;
    return std::max<int64_t>(dim * bits / 8, 1);
  }

  bool prefetches_;
  int64_t row_bytes_;  // of a key
  int64_t keys_;
  const char* const* far_ = nullptr;   // the row to prefetch from afar while row 0 is read
  const char* const* near_ = nullptr;  // the row to prefetch shortly before it is read
  const char* rows_[2 * kDecodeSplit + kMaxAhead];
};

}  // namespace tinyllm::TINYLLM_ISA
