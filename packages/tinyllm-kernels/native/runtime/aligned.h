// Arrays that begin at a cache line. A vector load that crosses from one line into the next reads
// both lines.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "ceil_div.h"
#include "runtime/arena.h"

namespace tinyllm {

struct ReleaseArray {
  void operator()(void* memory) const {
#if defined(TINYLLM_SEPARATE_ARRAYS)
    std::free(memory);
#else
    Arena::of_this_thread().release(memory);
#endif
  }
};

// An owned array of uninitialized numbers. No constructor or destructor of T runs. The thread that
// allocated an array must release it.
template <typename T>
using Aligned = std::unique_ptr<T[], ReleaseArray>;

// Allocates `count` >= 0 numbers at an address that is a multiple of 64. Throws std::bad_alloc.
// With TINYLLM_SEPARATE_ARRAYS each array is an allocation of its own, for sanitizers.
template <typename T>
Aligned<T> aligned(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
#if defined(TINYLLM_SEPARATE_ARRAYS)
  // `std::aligned_alloc` takes whole multiples of 64 bytes, and may return null for no bytes.
  void* memory = std::aligned_alloc(64, bytes ? round_up(bytes, 64) : 64);
  if (!memory) throw std::bad_alloc();
#else
  void* memory = Arena::of_this_thread().allocate(bytes);
#endif
  return Aligned<T>(static_cast<T*>(memory));
}

}  // namespace tinyllm
