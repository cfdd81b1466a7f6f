// Weights as inputs of a primitive.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <mlx/array.h>

#include "attention/attention.h"
#include "mlx/inputs.h"

namespace tinyllm {

// A weight, keys or values as Python passes them: dense numbers, or codes with scales and, in mode
// "affine", biases.
struct WeightArrays {
  mlx::core::array w;
  std::optional<mlx::core::array> scales, biases;
  int group_size, bits;
  std::string mode;
  int interleaved;  // rows stored interleaved, as `fastest_layout` returned; 0 for plain rows
  bool int8_activations;  // products may quantize x to int8
};

// Returns the format of a weight with `columns` columns. The data pointers are null.
Weights describe(const WeightArrays& w, int columns);

// Returns the format of keys or values. The data pointers are null.
KeyValues describe(const WeightArrays& w);

// Appends the arrays of a weight, or an optional array, to the inputs of a primitive.
void append(std::vector<mlx::core::array>& inputs, const WeightArrays& w);
void append(std::vector<mlx::core::array>& inputs, const std::optional<mlx::core::array>& array);

// The arrays of one weight among the inputs.
class WeightInput {
 public:
  // Takes the arrays that the format of `w` has from the inputs, and advances `index` behind them.
  WeightInput(const Weights& w, const std::vector<mlx::core::array>& inputs, size_t& index);

  // Returns the weight with its data. Of a stack of matrices it returns the first.
  Weights weights(Copies& copies) const;

  // Returns a matrix of a stack, whose first matrix `weights` has returned. A number that does not
  // exist is read as the last one.
  Weights of_expert(Weights first, int32_t expert) const;

 private:
  Weights format_;
  std::vector<Input> arrays_;
};

// An array among the inputs that may be absent.
class OptionalInput {
 public:
  OptionalInput(bool is_present, const std::vector<mlx::core::array>& inputs, size_t& index) {
    if (is_present) input_.emplace(inputs[index++]);
  }

  // Returns the contiguous numbers, or null.
  const void* data(Copies& copies) const;

 private:
  std::optional<Input> input_;
};

}  // namespace tinyllm
