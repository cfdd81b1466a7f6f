// Arrays that begin at a cache line. A vector load that crosses from one line into the next reads
// both lines.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace tinyllm {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// An owned array of uninitialized numbers. No constructor or destructor of T runs.
template <typename T>
using Aligned = std::unique_ptr<T[], Free>;

// Allocates `count` >= 0 numbers at an address that is a multiple of 64. Throws std::bad_alloc.
template <typename T>
Aligned<T> aligned(int64_t count) {
  // `std::aligned_alloc` takes whole multiples of 64 bytes, and may return null for no bytes.
  const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes ? bytes : 64);
  if (!memory) throw std::bad_alloc();
  return Aligned<T>(static_cast<T*>(memory));
}

}  // namespace tinyllm
