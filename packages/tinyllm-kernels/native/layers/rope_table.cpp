#include "layers/rope_table.h"

#include "runtime/parallel.h"

namespace tinyllm {

const float* RopeTable::get(const KernelTable& kernels, const Positions& positions,
                            const RopeSettings& rope) {
  if (table_ && frequencies_ == rope.frequencies && magnitude_ == rope.magnitude) {
    return table_.get();
  }
  // A cosine and a sine take as long as reading some 16 numbers.
  constexpr int64_t kNumbersPerPair = 16;
  table_ = aligned<float>(2 * positions.count * rope.pairs);
  frequencies_ = rope.frequencies, magnitude_ = rope.magnitude;
  const RopeTableTask task{positions.data, rope.frequencies, rope.pairs, rope.magnitude,
                           table_.get()};
  parallel_for(positions.count, kNumbersPerPair * rope.pairs, [&](int64_t first, int64_t last) {
    kernels.rope_table_rows(task, first, last);
  });
  return table_.get();
}

}  // namespace tinyllm
