#include "mlx/weight_inputs.h"

#include <algorithm>

namespace tinyllm {
namespace mx = mlx::core;

Weights describe(const WeightArrays& w, int columns) {
  Weights format{};
  format.rows = w.w.shape(-2);
  format.columns = columns;
  format.bits = w.bits;
  format.group = w.group_size;
  format.mode = mode_of(w.mode);
  format.type = type_of(w.scales ? w.scales->dtype() : w.w.dtype());
  format.interleaved = w.interleaved;
  format.int8_activations = w.int8_activations;
  return format;
}

KeyValues describe(const WeightArrays& w) {
  KeyValues format;
  format.mode = mode_of(w.mode);
  format.type = type_of(w.scales ? w.scales->dtype() : w.w.dtype());
  format.bits = w.bits;
  format.group = w.group_size;
  return format;
}

void append(std::vector<mx::array>& inputs, const WeightArrays& w) {
  inputs.push_back(w.w);
  append(inputs, w.scales);
  append(inputs, w.biases);
}

void append(std::vector<mx::array>& inputs, const std::optional<mx::array>& array) {
  if (array) inputs.push_back(*array);
}

WeightInput::WeightInput(const Weights& w, const std::vector<mx::array>& inputs, size_t& index)
    : format_(w) {
  const int count = w.mode == Mode::dense ? 1 : w.mode == Mode::affine ? 3 : 2;
  for (int i = 0; i < count; ++i) arrays_.emplace_back(inputs[index++]);
}

Weights WeightInput::weights(Copies& copies) const {
  Weights w = format_;
  const void** data[] = {&w.data, &w.scales, &w.biases};
  for (size_t i = 0; i < arrays_.size(); ++i) *data[i] = contiguous_data(arrays_[i], copies);
  return w;
}

Weights WeightInput::of_expert(Weights first, int32_t expert) const {
  const std::vector<int64_t>& shape = arrays_[0].shape;
  const int64_t matrices = shape.size() == 3 ? shape[0] : 1;
  // A negative number is a large unsigned one.
  const int64_t matrix = std::min<uint32_t>(expert, static_cast<uint32_t>(matrices - 1));
  const void** data[] = {&first.data, &first.scales, &first.biases};
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const int64_t bytes = arrays_[i].size / matrices * static_cast<int64_t>(arrays_[i].itemsize);
    *data[i] = static_cast<const char*>(*data[i]) + matrix * bytes;
  }
  return first;
}

const void* OptionalInput::data(Copies& copies) const {
  return input_ ? contiguous_data(*input_, copies) : nullptr;
}

}  // namespace tinyllm
