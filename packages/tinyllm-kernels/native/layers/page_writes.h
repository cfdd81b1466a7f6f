// Pages of keys, or of values, that new rows are written to.
#pragma once

#include "attention/attention.h"
#include "dispatch/kernels.h"

namespace tinyllm {

// Where pages are read, and, by the same strides, written.
struct PageRows {
  KeyValues kv;
  char* codes = nullptr;
  char* scales = nullptr;
  char* biases = nullptr;

  // Rows of `heads` times `dim` numbers, one for each of `tokens` tokens, to their slots: page times
  // page size and the place in the page. A slot that does not exist is nowhere.
  void write(const Kernels& kernels, const void* rows, Type type, int64_t tokens, int64_t heads,
             int64_t dim, const int32_t* slots, int64_t pages, int64_t page) const;
};

}  // namespace tinyllm
