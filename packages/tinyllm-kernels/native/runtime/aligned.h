// Arrays aligned to cache lines. A vector load that crosses a line boundary costs two reads.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace tinyllm {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// An owned array of uninitialized numbers.
template <typename T>
using Aligned = std::unique_ptr<T[], Free>;

// Allocates `count` numbers on a boundary of 64 bytes. Throws std::bad_alloc.
template <typename T>
Aligned<T> aligned(int64_t count) {
  const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes ? bytes : 64);
  if (!memory) throw std::bad_alloc();
  return Aligned<T>(static_cast<T*>(memory));
}

}  // namespace tinyllm
