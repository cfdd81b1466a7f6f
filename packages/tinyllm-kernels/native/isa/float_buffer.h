// Temporary memory of a kernel: floats that begin at a cache line, so that no vector lies in two
// lines.
//
// Kernels use it instead of std::vector<float>, whose functions are not compiled once for each
// instruction set: see types.h.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include "ceil_div.h"

namespace tinyllm::TINYLLM_ISA {

class FloatBuffer {
 public:
  // Memory of `count` floats, uninitialized. Throws std::bad_alloc.
  explicit FloatBuffer(int64_t count) {
    const size_t lines = ceil_div(static_cast<size_t>(count) * sizeof(float), kLine);
    data_ = static_cast<float*>(std::aligned_alloc(kLine, (lines ? lines : 1) * kLine));
    if (!data_) throw std::bad_alloc();
  }
  ~FloatBuffer() { std::free(data_); }
  FloatBuffer(const FloatBuffer&) = delete;
  FloatBuffer& operator=(const FloatBuffer&) = delete;

  float* get() const { return data_; }

 private:
  static constexpr size_t kLine = 64;

  float* data_;
};

}  // namespace tinyllm::TINYLLM_ISA
