#include "mlx/operations/group_states.h"

#include <algorithm>

#include "mlx/operations/primitive.h"

namespace tinyllm {

namespace mx = mlx::core;

namespace {

constexpr size_t kArraysOfState = 2, kArraysOfTable = 3;

size_t table_count(const std::vector<int>& table_of_layer) {
  return table_of_layer.empty()
             ? 0
             : 1 + *std::max_element(table_of_layer.begin(), table_of_layer.end());
}

}  // namespace

std::vector<size_t> cache_indices(const std::vector<LayerHandle>& layers) {
  std::vector<size_t> indices;
  size_t recurrent = 0, others = 0;
  for (const LayerHandle& layer : layers)
    indices.push_back(layer.delta_net ? recurrent++ : others++);
  return indices;
}

void check_states(const mx::array& x, const std::vector<LayerHandle>& layers,
                  const GroupStateArrays& states) {
  const size_t count = std::count_if(layers.begin(), layers.end(),
                                     [](const LayerHandle& layer) { return layer.delta_net; });
  require(states.arrays.size() == kArraysOfState * count && states.table_of_layer.size() == count,
          "states: expected two arrays and a table for each recurrent layer");
  require(table_count(states.table_of_layer) == states.tables.size(),
          "states: expected the index of a table for each recurrent layer");
  size_t next = 0;
  for (const LayerHandle& layer : layers) {
    if (!layer.delta_net) continue;
    layer.delta_net->check(x, states.arrays[next], states.arrays[next + 1]);
    next += kArraysOfState;
  }
  for (const StateTableArrays& table : states.tables) {
    require(table.cu_seqlens.dtype() == mx::int32 && table.load_slots.dtype() == mx::int32 &&
                table.save_slots.dtype() == mx::int32,
            "states: expected tables of int32");
    require(table.cu_seqlens.size() == table.load_slots.size() + 1 &&
                table.save_slots.size() == static_cast<size_t>(x.shape(0)) * x.shape(1),
            "states: expected one number per token, and one more start than load slots");
  }
}

GroupStateInputs::GroupStateInputs(std::vector<int> table_of_layer,
                                   const std::vector<mx::array>& inputs,
                                   std::vector<mx::array>& outputs)
    : table_of_layer_(std::move(table_of_layer)) {
  for (size_t i = outputs.size() - kArraysOfState * table_of_layer_.size(); i < outputs.size(); ++i) {
    states_.emplace_back(inputs[i], outputs[i]);
  }
  const size_t first = inputs.size() - kArraysOfTable * table_count(table_of_layer_);
  for (size_t i = first; i < inputs.size(); i += kArraysOfTable) tables_.emplace_back(inputs, i);
}

void GroupStateInputs::run(const KernelTable& kernels, const DeltaNetHandle& layer, size_t index,
                           const Rows& rows, char* y, Copies& copies) const {
  const DonatedInput &conv = states_[kArraysOfState * index],
                     &state = states_[kArraysOfState * index + 1];
  const StateTableInputs& table = tables_[table_of_layer_[index]];
  layer.run(kernels, rows, conv.content(), state.content(), table.slots(state.shape()[0], copies), y);
}

}  // namespace tinyllm
