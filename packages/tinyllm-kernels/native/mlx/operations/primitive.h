// Base classes of the primitives: allocation of outputs, dispatch to MLX's CPU stream.
#pragma once

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/kernel_table.h"
#include "mlx/fork.h"

namespace tinyllm {

[[noreturn]] inline void refuse_gpu() {
  throw std::runtime_error("tinyllm_kernels: the cpu backend cannot run on a GPU stream");
}

// Throws std::invalid_argument with the text `expectation` unless `holds`.
inline void require(bool holds, const char* expectation) {
  if (!holds) throw std::invalid_argument(expectation);
}

// Returns the default stream of the CPU for the calling thread. Throws std::runtime_error in a
// child after fork.
inline mlx::core::Stream cpu_stream_of_thread() {
  refuse_after_fork();
  return mlx::core::default_stream(mlx::core::Device::cpu);
}

// Allocates the memory of `out` and returns it. Throws std::runtime_error if there is too little:
// MLX's allocator for CPUs returns null then, and those for GPUs throw.
inline char* allocate(mlx::core::array& out) {
  out.set_data(mlx::core::allocator::malloc(out.nbytes()));
  char* data = out.data<char>();
  if (!data && out.nbytes()) {
    throw std::runtime_error("unable to allocate " + std::to_string(out.nbytes()) + " bytes");
  }
  return data;
}

// A primitive with one output.
class CpuPrimitive : public mlx::core::UnaryPrimitive {
 public:
  CpuPrimitive() : UnaryPrimitive(cpu_stream_of_thread()) {}

  void eval_gpu(const std::vector<mlx::core::array>&, mlx::core::array&) override { refuse_gpu(); }

 protected:
  // Queues `task` on the stream's thread. The inputs are computed by the time it runs.
  template <typename Task>
  void dispatch(mlx::core::array& out, Task task) {
    if (out.size() == 0) return;
    record_use();
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    encoder.set_output_array(out);
    encoder.dispatch(std::move(task));
  }

  const KernelTable& kernels_ = chosen_kernels();
};

// A primitive with several outputs.
class CpuPrimitives : public mlx::core::Primitive {
 public:
  CpuPrimitives() : Primitive(cpu_stream_of_thread()) {}

  void eval_gpu(const std::vector<mlx::core::array>&, std::vector<mlx::core::array>&) override {
    refuse_gpu();
  }

 protected:
  template <typename Task>
  void dispatch(std::vector<mlx::core::array>& outputs, Task task) {
    if (outputs[0].size() == 0) return;
    record_use();
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    for (mlx::core::array& out : outputs) encoder.set_output_array(out);
    encoder.dispatch(std::move(task));
  }

  const KernelTable& kernels_ = chosen_kernels();
};

// Returns outputs with the shapes and dtypes of the first `count` inputs.
inline std::vector<mlx::core::array> same_shapes(const std::vector<mlx::core::array>& inputs,
                                                 size_t count,
                                                 std::shared_ptr<mlx::core::Primitive> primitive) {
  std::vector<mlx::core::Shape> shapes;
  std::vector<mlx::core::Dtype> dtypes;
  for (size_t i = 0; i < count; ++i) {
    shapes.push_back(inputs[i].shape());
    dtypes.push_back(inputs[i].dtype());
  }
  return mlx::core::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
}

}  // namespace tinyllm
