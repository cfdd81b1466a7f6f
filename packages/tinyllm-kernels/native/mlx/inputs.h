// An input of a primitive: where it lies, for a task that runs later.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/mlp.h"
#include "matmul/linear.h"
#include <mlx/array.h>
#include "types.h"

namespace tinyllm {

// The kernels' name for a dtype. Throws std::invalid_argument for one that they do not know.
Type type_of(mlx::core::Dtype dtype);

// The kernels' name for a mode of MLX, which is empty where numbers are dense. Throws
// std::invalid_argument for one that they do not know.
Mode mode_of(const std::string& mode);

struct Input {
  explicit Input(const mlx::core::array& array);

  // Its numbers without gaps: its own memory, or a copy that lives as long as `copy`.
  const void* compact(std::unique_ptr<char[]>& copy) const;

  // Whether numbers that are neighbors on the last axis are neighbors in memory.
  bool has_whole_rows() const;

  const void* data;
  std::vector<int64_t> shape, strides;
  int64_t size;
  size_t itemsize;
  bool contiguous;
};

// The phase of a forward pass as callers state it. Without a value the shape of x decides.
using OptionalPhase = std::optional<Phase>;

// Parses "prefill" or "decode"; no name is no value. Throws std::invalid_argument for other names.
OptionalPhase phase_of(const std::optional<std::string>& name);

// The phase of rows x: `asked`, or else by the shape. Rows of shape `... 1 K` are decode steps, rows
// of shape `... T K` with T > 1 are a prompt. A matrix of up to 16 rows passes for decode steps.
Phase phase_of(const Input& x, OptionalPhase asked);

// The number of queries up to which a request of paged attention is a decode step: all, none, or
// without a phase 1.
int64_t decode_queries(OptionalPhase asked);

// The rows of x, with their phase. `numbers` is their location.
Rows rows_of(const Input& x, const void* numbers, Type type, OptionalPhase asked);

}  // namespace tinyllm
