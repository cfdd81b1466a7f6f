#include "mlx/weight_inputs.h"

#include <algorithm>

namespace tinyllm {
namespace mx = mlx::core;

Weights describe(const WeightArrays& w, int columns) {
  Weights found{};
  found.rows = w.w.shape(-2);
  found.columns = columns;
  found.bits = w.bits;
  found.group = w.group_size;
  found.mode = mode_of(w.mode);
  found.type = type_of(w.scales ? w.scales->dtype() : w.w.dtype());
  found.interleaved = w.interleaved;
  return found;
}

KeyValues describe(const WeightArrays& w) {
  KeyValues kv;
  kv.mode = mode_of(w.mode);
  kv.type = type_of(w.scales ? w.scales->dtype() : w.w.dtype());
  kv.bits = w.bits, kv.group = w.group_size;
  return kv;
}

void append(std::vector<mx::array>& inputs, const WeightArrays& w) {
  inputs.push_back(w.w);
  append(inputs, w.scales);
  append(inputs, w.biases);
}

void append(std::vector<mx::array>& inputs, const std::optional<mx::array>& array) {
  if (array) inputs.push_back(*array);
}

WeightInput::WeightInput(const Weights& w, const std::vector<mx::array>& inputs, size_t& at)
    : w_(w) {
  const int count = w.mode == Mode::dense ? 1 : w.mode == Mode::affine ? 3 : 2;
  for (int i = 0; i < count; ++i) parts_.emplace_back(inputs[at++]);
}

int64_t WeightInput::clamped(int32_t expert) const {
  const std::vector<int64_t>& shape = parts_[0].shape;
  const int64_t last = shape.size() == 3 ? shape[0] - 1 : 0;
  return std::min<uint32_t>(expert, static_cast<uint32_t>(last));
}

Weights WeightInput::placed(Copies& copies, int64_t expert) const {
  Weights found = w_;
  const void** places[] = {&found.data, &found.scales, &found.biases};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Input& part = parts_[i];
    const int64_t matrices = part.shape.size() == 3 ? part.shape[0] : 1;
    *places[i] = static_cast<const char*>(tinyllm::placed(part, copies)) +
                 expert * (part.size / matrices) * static_cast<int64_t>(part.itemsize);
  }
  return found;
}

const void* OptionalInput::placed(Copies& copies) const {
  return input_ ? tinyllm::placed(*input_, copies) : nullptr;
}

const void* placed(const Input& input, Copies& copies) {
  return input.compact(copies.emplace_back());
}

}  // namespace tinyllm
