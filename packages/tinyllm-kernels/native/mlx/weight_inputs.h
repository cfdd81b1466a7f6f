// A weight as Python hands it over.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <mlx/array.h>

#include "attention/attention.h"
#include "mlx/inputs.h"

namespace tinyllm {

// `w` dense, or codes with scales and, in mode "affine", biases.
struct WeightArrays {
  mlx::core::array w;
  std::optional<mlx::core::array> scales, biases;
  int group_size, bits;
  std::string mode;
  int interleaved;  // rows that lie side by side, as `interleaves` said; 0 is none
};

// --- weight_inputs.h
// Weights among the inputs of a primitive.

// Copies of inputs that did not lie in memory as a kernel wants them, for as long as a task runs.
using Copies = std::vector<std::unique_ptr<char[]>>;

// Everything about a weight of so many columns but where it lies.
Weights describe(const WeightArrays& w, int columns);

// Everything about keys or values but where they lie.
KeyValues describe(const WeightArrays& w);

// Adds the parts of a weight, or an array that may be missing, to the inputs of a primitive.
void append(std::vector<mlx::core::array>& inputs, const WeightArrays& w);
void append(std::vector<mlx::core::array>& inputs, const std::optional<mlx::core::array>& array);

// The parts of one weight.
class WeightInput {
 public:
  // Takes as many of the inputs, from `at` on, as the weight has parts.
  WeightInput(const Weights& w, const std::vector<mlx::core::array>& inputs, size_t& at);

  // An expert of the stack: `expert`, or the last one if the stack has no such matrix.
  int64_t clamped(int32_t expert) const;

  // The weight as it lies in memory; of a stack of matrices the one of `expert`.
  Weights placed(Copies& copies, int64_t expert = 0) const;

 private:
  Weights w_;
  std::vector<Input> parts_;
};

// An input that may be missing.
class OptionalInput {
 public:
  OptionalInput(bool present, const std::vector<mlx::core::array>& inputs, size_t& at) {
    if (present) input_.emplace(inputs[at++]);
  }

  const void* placed(Copies& copies) const;

 private:
  std::optional<Input> input_;
};

// The numbers of an input without gaps.
const void* placed(const Input& input, Copies& copies);

}  // namespace tinyllm
