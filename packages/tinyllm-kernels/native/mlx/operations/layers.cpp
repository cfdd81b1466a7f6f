// Layers with dense caches, and single halves of layers, as primitives of MLX.

#include <array>
#include <numeric>

#include "mlx/loan.h"
#include "mlx/operations/group_states.h"
#include "mlx/operations/layer_loop.h"
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

class Layers : public CpuPrimitives {
 public:
  // The caches are inputs and outputs, or lent.
  Layers(LayerGroup layers, std::vector<int> table_of_layer, std::shared_ptr<LentArrays> lent,
         int offset, OptionalPhase phase)
      : layers_(std::move(layers)),
        table_of_layer_(std::move(table_of_layer)),
        lent_(std::move(lent)),
        offset_(offset),
        phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    release_inputs(inputs, outputs);
    char* y = allocate(outputs[0]);
    const size_t count = outputs.size() - 1 - 2 * table_of_layer_.size();
    const bool without_tokens = offset_ == 0;
    CacheMemory caches = lent_ ? lent_->memory(inputs, without_tokens)
                               : donate(inputs, outputs, count, without_tokens);
    GroupStates states(table_of_layer_, inputs, outputs);
    dispatch(outputs,
             [&kernels = kernels_, layers = layers_, offset = offset_, y, x = Input(inputs[0]),
              lent = lent_, caches = std::move(caches), states = std::move(states), phase = phase_,
              cache_index = cache_indices(*layers_), type = type_of(outputs[0].dtype())] {
               Copies copies;
               std::vector<int32_t> positions(x.shape[1]);
               std::iota(positions.begin(), positions.end(), offset);
               RopeTable rope_table;
               const auto attend = [&](size_t i, const void* rows, char* to) {
                 const LayerHandle& layer = (*layers)[i];
                 if (layer.delta_net) {
                   return states.run(kernels, *layer.delta_net, cache_index[i],
                                     rows_of(x, rows, type, phase), to, copies);
                 }
                 auto task = layer.attention->task<AttentionLayerTask>(x, rows, type, phase);
                 task.projection.positions = {positions.data(), x.shape[1], true};
                 task.projection.rope_table = &rope_table;
                 set_cache((*caches)[cache_index[i]], task);
                 task.offset = offset;
                 task.y = to;
                 run_attention_layer(kernels, task);
               };
               run_layers(kernels, *layers, x, contiguous_data(x, copies), type, phase, y, attend);
             });
  }

  const char* name() const override { return "tinyllm::Layers"; }

 private:
  // Sets the keys and values of `task` to those of a cache `B 2 Hkv capacity D`.
  static void set_cache(const DonatedInput& cache, AttentionLayerTask& task) {
    const int64_t dim = cache.shape()[4], head_stride = cache.shape()[3] * dim;
    const int64_t values = cache.shape()[2] * head_stride;  // numbers from the keys to the values
    char* content = cache.content();
    task.keys = {content, {2 * values, head_stride, dim}};
    task.values = task.keys;
    task.values.data = content + values * static_cast<int64_t>(cache.itemsize());
  }

  LayerGroup layers_;
  std::vector<int> table_of_layer_;
  std::shared_ptr<LentArrays> lent_;  // or null
  int offset_;
  OptionalPhase phase_;
};

// Throws std::invalid_argument if the new keys and values of x do not fit into `cache`.
void check_cache(const mx::array& x, const ProjectTask& projection, const mx::array& cache,
                 int offset) {
  require(x.ndim() == 3 && x.shape(2) == projection.q.columns,
          "x: expected the shape B L E of the weights");
  require(cache.ndim() == 5 && cache.shape(0) == x.shape(0) && cache.shape(1) == 2 &&
              cache.shape(2) == projection.kv_heads && cache.shape(4) == projection.dim &&
              cache.dtype() == x.dtype(),
          "caches: expected the shape B 2 Hkv capacity D and the dtype of x");
  require(offset >= 0 && x.shape(1) <= cache.shape(3) - offset,
          "offset: expected capacity in the caches for all tokens of x");
}

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

std::vector<mx::array> layers(const mx::array& x, LayerGroup layers,
                              const std::vector<mx::array>& caches, const GroupStateArrays& states,
                              int offset, OptionalPhase phase) {
  require(x.ndim() == 3, "x: expected the shape B L E");
  check_states(x, *layers, states);
  require(caches.size() + states.table_of_layer.size() == layers->size(),
          "caches: expected one array for each attention layer");
  size_t next = 0;
  for (const LayerHandle& layer : *layers) {
    if (layer.attention) check_cache(x, layer.attention->projection(), caches[next++], offset);
  }
  std::vector<mx::array> inputs = {x};
  inputs.insert(inputs.end(), caches.begin(), caches.end());
  inputs.insert(inputs.end(), states.arrays.begin(), states.arrays.end());
  const size_t num_outputs = inputs.size();
  for (const StateTableArrays& table : states.tables) {
    inputs.insert(inputs.end(), {table.cu_seqlens, table.loads, table.saves});
  }
  return same_shapes(
      inputs, num_outputs,
      std::make_shared<Layers>(std::move(layers), states.table_of_layer, nullptr, offset, phase));
}

mx::array layers(const mx::array& x, LayerGroup layers, Loan& loan, int offset,
                 OptionalPhase phase) {
  const LentArrays& lent = *loan.lent();
  require(loan.belongs_to(layers) && lent.arrays().size() == layers->size(),
          "loan: expected one array for each layer");
  // The later passes need not read the shape of each layer's array again.
  const size_t checked = loan.is_new() ? lent.arrays().size() : 1;
  for (size_t i = 0; i < checked; ++i) {
    check_cache(x, (*layers)[i].attention->projection(), lent.arrays()[i], offset);
  }
  require(x.shape(1) <= lent.capacity() - offset, "offset: expected capacity for all tokens of x");
  return loan.next(x, {}, std::make_shared<Layers>(std::move(layers), std::vector<int>{},
                                                   loan.lent(), offset, phase));
}

}  // namespace tinyllm
