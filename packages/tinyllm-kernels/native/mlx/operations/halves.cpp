// Halves of a layer as primitives of MLX: the projections of attention, and the MLP or the mixture
// of experts.

#include <array>

#include "mlx/operations.h"
#include "mlx/operations/primitive.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class FeedForwardPrimitive : public CpuPrimitive {
 public:
  FeedForwardPrimitive(std::shared_ptr<FeedForward> handle, OptionalPhase phase)
      : handle_(std::move(handle)), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, handle = handle_, x = Input(inputs[0]), y = allocate(out),
                   phase = phase_, type = type_of(out.dtype())] {
      Copies copies;
      handle->run(kernels, rows_of(x, contiguous_data(x, copies), type, phase), y);
    });
  }

  const char* name() const override { return "tinyllm::FeedForward"; }

 private:
  std::shared_ptr<FeedForward> handle_;
  OptionalPhase phase_;
};

class ProjectQkv : public CpuPrimitives {
 public:
  ProjectQkv(std::shared_ptr<AttentionHandle> handle, OptionalPhase phase)
      : handle_(std::move(handle)), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    char* to[] = {allocate(outputs[0]), allocate(outputs[1]), allocate(outputs[2])};
    char* gate = outputs.size() > 3 ? allocate(outputs[3]) : nullptr;
    dispatch(outputs, [&kernels = kernels_, handle = handle_, x = Input(inputs[0]),
                       positions = Input(inputs[1]), to = std::to_array(to), gate, phase = phase_,
                       type = type_of(outputs[0].dtype())] {
      Copies copies;
      ProjectTask task = handle->projection();
      task.x = contiguous_data(x, copies);
      task.batch = x.shape[0];
      task.length = x.shape[1];
      task.phase = phase_of(x, phase);
      task.positions = {static_cast<const int32_t*>(contiguous_data(positions, copies)),
                        positions.size, positions.shape[0] == 1};
      Heads* heads[] = {&task.to_q, &task.to_k, &task.to_v};
      for (int i = 0; i < 3; ++i) {
        const int64_t count = i == 0 ? task.heads : task.kv_heads;
        const int64_t head_stride = task.length * task.dim;
        *heads[i] = {to[i], {count * head_stride, head_stride, task.dim}};
      }
      task.to_gate = gate;
      task.type = type;
      run_projections(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::ProjectQkv"; }

 private:
  std::shared_ptr<AttentionHandle> handle_;
  OptionalPhase phase_;
};

}  // namespace

mx::array feed_forward(const mx::array& x, std::shared_ptr<FeedForward> handle,
                       OptionalPhase phase) {
  auto primitive = std::make_shared<FeedForwardPrimitive>(std::move(handle), phase);
  return mx::array(x.shape(), x.dtype(), std::move(primitive), {x});
}

std::vector<mx::array> project_qkv(const mx::array& x, std::shared_ptr<AttentionHandle> handle,
                                   const mx::array& positions, OptionalPhase phase) {
  const ProjectTask& task = handle->projection();
  require(x.ndim() == 3 && x.shape(2) == task.q.columns,
          "x: expected the shape B L E of the weights");
  require(positions.ndim() == 2 && positions.shape(1) == x.shape(1) &&
              (positions.shape(0) == 1 || positions.shape(0) == x.shape(0)) &&
              positions.dtype() == mx::int32,
          "positions: expected the shape 1 L or B L, and int32");
  const auto shape_of = [&](int64_t heads) {
    return mx::Shape{x.shape(0), static_cast<int>(heads), x.shape(1), static_cast<int>(task.dim)};
  };
  const mx::Shape q = shape_of(task.heads), k = shape_of(task.kv_heads);
  std::vector<mx::Shape> shapes = {q, k, k};
  if (task.gate.rows) shapes.push_back({x.shape(0), x.shape(1), task.gate.rows});
  const std::vector<mx::Dtype> dtypes(shapes.size(), x.dtype());
  return mx::array::make_arrays(std::move(shapes), dtypes,
                                std::make_shared<ProjectQkv>(std::move(handle), phase),
                                {x, positions});
}

}  // namespace tinyllm
