// The loop over native layers.
#pragma once

#include <vector>

#include "mlx/handles.h"
#include "runtime/aligned.h"

namespace tinyllm {

// Two buffers that the halves of layers write to in turn. The last result goes to `y` instead.
class PingPongBuffer {
 public:
  // For `results` results of `bytes` bytes.
  PingPongBuffer(int64_t results, int64_t bytes, char* y) : y_(y), left_(results) {
    for (Aligned<char>& buffer : buffers_) buffer = aligned<char>(results > 1 ? bytes : 0);
  }

  // Calls `write(destination)` for the next result and returns the destination.
  template <typename Write>
  const void* next(Write write) {
    char* destination = --left_ == 0 ? y_ : buffers_[left_ % 2].get();
    write(destination);
    return destination;
  }

 private:
  char* y_;
  int64_t left_;
  Aligned<char> buffers_[2];
};

// Runs `layers` on `x` with data `rows`, B L E, and writes the result to `y`. Calls
// `attend(i, rows, y)` for the attention half of layer i.
template <typename Attend>
void run_layers(const KernelTable& kernels, const std::vector<LayerHandle>& layers, const Input& x,
                const void* rows, Type type, OptionalPhase phase, char* y, Attend attend) {
  int64_t results = 0;
  for (const LayerHandle& layer : layers) results += layer.feed_forward ? 2 : 1;
  PingPongBuffer buffer(results, x.size * size_of(type), y);
  for (size_t i = 0; i < layers.size(); ++i) {
    rows = buffer.next([&](char* to) { attend(i, rows, to); });
    if (!layers[i].feed_forward) continue;
    const Rows halfway = rows_of(x, rows, type, phase);
    rows = buffer.next([&](char* to) { layers[i].feed_forward->run(kernels, halfway, to); });
  }
}

}  // namespace tinyllm
