// The states of the recurrent layers of a group, in one primitive with its attention layers.
#pragma once

#include <vector>

#include "mlx/donation.h"
#include "mlx/handles.h"
#include "mlx/operations.h"
#include "mlx/operations/state_slots.h"

namespace tinyllm {

// For each layer of a group the number of layers of its kind before it: the index of its
// cache or states.
std::vector<size_t> cache_indices(const std::vector<LayerHandle>& layers);

// Throws std::invalid_argument unless x, states and tables fit the recurrent layers of a group.
void check_states(const mlx::core::array& x, const std::vector<LayerHandle>& layers,
                  const GroupStateArrays& states);

// The states as donated inputs. A primitive has the arrays of all states after its other donated
// inputs, and the state tables after all inputs.
class GroupStateInputs {
 public:
  GroupStateInputs(std::vector<int> table_of_layer, const std::vector<mlx::core::array>& inputs,
                   std::vector<mlx::core::array>& outputs);

  // Runs the first half of the recurrent layer with index `index`.
  void run(const KernelTable& kernels, const DeltaNetHandle& layer, size_t index, const Rows& rows,
           char* y, Copies& copies) const;

 private:
  std::vector<int> table_of_layer_;
  std::vector<DonatedInput> states_;
  std::vector<StateTableInputs> tables_;
};

}  // namespace tinyllm
