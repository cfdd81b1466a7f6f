// What all primitives share: one output, allocated when it is wanted, and no way on a GPU.
#pragma once

#include <stdexcept>
#include <utility>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "tiers.h"

namespace tinyllm {

class CpuPrimitive : public mlx::core::UnaryPrimitive {
 public:
  CpuPrimitive() : UnaryPrimitive(mlx::core::default_stream(mlx::core::Device::cpu)) {}

  void eval_gpu(const std::vector<mlx::core::array>&, mlx::core::array&) override {
    throw std::runtime_error("tinyllm_kernels: the cpu backend cannot run on a GPU stream");
  }

 protected:
  // Memory for the numbers of `out`.
  static char* allocate(mlx::core::array& out) {
    out.set_data(mlx::core::allocator::malloc(out.nbytes()));
    return out.data<char>();
  }

  // Hands `task` to the stream's thread, where the inputs will be ready.
  template <typename Task>
  void dispatch(mlx::core::array& out, Task task) {
    if (out.size() == 0) return;
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    encoder.set_output_array(out);
    encoder.dispatch(std::move(task));
  }

  const Kernels& kernels_ = chosen_tier();
};

}  // namespace tinyllm
