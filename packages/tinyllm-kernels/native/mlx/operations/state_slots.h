// State tables as inputs of a primitive.
#pragma once

#include "mlx/inputs.h"
#include "recurrent/tasks.h"

namespace tinyllm {

// cu_seqlens, load_slots and save_slots, from an input on.
class StateTableInputs {
 public:
  StateTableInputs(const std::vector<mlx::core::array>& inputs, size_t first)
      : cu_seqlens_(inputs[first]), loads_(inputs[first + 1]), saves_(inputs[first + 2]) {}

  StateSlots slots(int64_t count, Copies& copies) const {
    const auto integers = [&](const Input& input) {
      return static_cast<const int32_t*>(contiguous_data(input, copies));
    };
    return {integers(cu_seqlens_), integers(loads_), integers(saves_), loads_.size, saves_.size,
            count};
  }

 private:
  Input cu_seqlens_, loads_, saves_;
};

}  // namespace tinyllm
