// Layers with dense caches as a primitive of MLX.

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
    GroupStateInputs states(table_of_layer_, inputs, outputs);
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
    inputs.insert(inputs.end(), {table.cu_seqlens, table.load_slots, table.save_slots});
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
