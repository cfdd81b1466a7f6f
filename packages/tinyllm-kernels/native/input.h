// An input of a primitive: where it lies, for a task that runs later.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "feed_forward.h"
#include "linear.h"
#include "mlx/array.h"
#include "weights.h"

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

// What the rows of x are: those of `... 1 K` are tokens that are decoded, those of `... T K` with
// T > 1 prompts. A matrix says nothing of it: up to 16 rows pass for decoded.
Tokens tokens_of(const Input& x);

// As many rows as x has, and what they are; their numbers are somewhere else.
Rows rows_of(const Input& x, const void* numbers, Type type);

}  // namespace tinyllm
