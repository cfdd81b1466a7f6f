// The loop over native layers.
#pragma once

#include <vector>

#include "mlx/handles.h"
#include "runtime/aligned.h"

namespace tinyllm {

// Runs `layers` on `x` with data `rows`, B L E, and writes the result of the last one to `y`. Calls
// `mix(i, from, to)` for the first half of layer i: attention or gated DeltaNet.
template <typename Mix>
void run_layers(const KernelTable& kernels, const std::vector<LayerHandle>& layers, const Input& x,
                const void* rows, Type type, OptionalPhase phase, char* y, Mix mix) {
  const auto halfway = aligned<char>(x.size * size_of(type));
  for (size_t i = 0; i < layers.size(); ++i) {
    mix(i, rows, halfway.get());
    layers[i].feed_forward->run(kernels, rows_of(x, halfway.get(), type, phase), y);
    rows = y;
  }
}

}  // namespace tinyllm
