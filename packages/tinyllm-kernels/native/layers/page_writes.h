// Writing new keys or values to pages.
#pragma once

#include "attention/attention.h"
#include "dispatch/kernel_table.h"

namespace tinyllm {

// The pages of keys, or of values. `kv` describes them for reading. `codes`, `scales` and `biases`
// point to the same arrays for writing, with the strides of `kv`.
struct WritablePages {
  KeyValues kv;
  char* codes = nullptr;
  char* scales = nullptr;
  char* biases = nullptr;

  // Writes `rows`, of shape tokens heads dim, to the slots of their tokens. A token's slot is `page
  // * page_size + offset`. A slot outside of the pages is ignored.
  void write(const KernelTable& kernels, const void* rows, Type type, int64_t tokens, int64_t heads,
             int64_t dim, const int32_t* slots, int64_t num_pages, int64_t page_size) const;
};

}  // namespace tinyllm
