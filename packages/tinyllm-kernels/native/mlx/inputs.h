// Inputs of a primitive: the memory of an array, for a task that runs later on MLX's stream.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <mlx/array.h>

#include "layers/mlp.h"
#include "types.h"

namespace tinyllm {

// Returns the kernels' type of a dtype. Throws std::invalid_argument if kernels do not support it.
Type type_of(mlx::core::Dtype dtype);

// Returns the mode of MLX's name for it; an empty name is a dense array. Throws
// std::invalid_argument for an unknown name.
Mode mode_of(const std::string& name);

// An array's memory and layout. The stream keeps the memory alive until the task has run.
struct Input {
  explicit Input(const mlx::core::array& array);

  // Returns the numbers in row-major order without gaps: the array's own memory, or a new array
  // that is stored in `copy`.
  const void* compact(std::unique_ptr<char[]>& copy) const;

  // True if the numbers of each row, along the last axis, are contiguous.
  bool has_contiguous_rows() const;

  const void* data;
  std::vector<int64_t> shape, strides;  // strides in numbers
  int64_t size;                         // in numbers
  size_t itemsize;                      // in bytes
  bool is_contiguous;
};

// Copies of non-contiguous inputs, kept until the end of a task.
using Copies = std::vector<std::unique_ptr<char[]>>;

// Returns the numbers of an input without gaps, from `copies` if they had to be copied.
const void* contiguous_data(const Input& input, Copies& copies);

// The phase that a caller stated. Without a value the shape of x decides.
using OptionalPhase = std::optional<Phase>;

// Parses "prefill" or "decode"; no name gives no value. Throws std::invalid_argument for other
// names.
OptionalPhase phase_of(const std::optional<std::string>& name);

// Returns the phase of rows x: `stated`, or else the phase that the shape implies. Rows of shape
// `... 1 K` are decode steps. Rows of shape `... T K` with T > 1 are a prompt. A matrix of up to 16
// rows counts as decode steps.
Phase phase_of(const Input& x, OptionalPhase stated);

// Returns the largest number of queries for which a request of paged attention is a decode step:
// any number in phase decode, none in phase prefill, 1 without a phase.
int64_t decode_queries(OptionalPhase stated);

// Describes the rows of x, whose contiguous numbers are at `data`.
Rows rows_of(const Input& x, const void* data, Type type, OptionalPhase stated);

}  // namespace tinyllm
