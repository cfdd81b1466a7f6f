// Prefetching of the next weights during products in float32.
#pragma once

#include "ceil_div.h"
#include "matmul/formats.h"
#include "matmul/linear.h"

namespace tinyllm::TINYLLM_ISA {

// Prefetches a block of columns of some rows to the second-level cache, one cache line at a time.
// Many at once would wait for each other, and the products for them.
class BlockPrefetch {
 public:
  BlockPrefetch(const char* first, int64_t stride, int lines, int64_t rows)
      : row_(first), stride_(stride), lines_(lines), rows_(lines ? rows : 0) {}

  void step() {
    if (!rows_) return;
    __builtin_prefetch(row_ + 64 * line_, 0, 2);
    if (++line_ < lines_) return;
    line_ = 0;
    row_ += stride_;
    --rows_;
  }

  void finish() {
    while (rows_) step();
  }

 private:
  const char* row_;
  int64_t stride_;
  int lines_, line_ = 0;
  int64_t rows_;
};

// Returns the prefetch of columns k0 to k1 of `rows` rows, of which n is the first.
template <typename Format>
BlockPrefetch prefetch_block(const Weights& w, int64_t n, int64_t rows, int k0, int k1) {
  const auto* row = reinterpret_cast<const char*>(Format::row(w, n));
  const int64_t stride = reinterpret_cast<const char*>(Format::row(w, n + 1)) - row;
  const int64_t first = stride * k0 / w.columns, bytes = stride * (k1 - k0) / w.columns;
  return {row + first, stride, static_cast<int>(ceil_div(bytes, 64)), rows};
}

}  // namespace tinyllm::TINYLLM_ISA
