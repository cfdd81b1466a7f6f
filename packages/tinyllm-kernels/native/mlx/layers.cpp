// The halves of a transformer block as primitives of MLX.

#include <array>
#include <cmath>
#include <numeric>

#include "mlx/handles.h"
#include "mlx/primitive.h"
#include "mlx/operations.h"
#include "mlx/ping_pong_buffer.h"
#include "mlx/donation.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class FeedForwardHalf : public CpuPrimitive {
 public:
  FeedForwardHalf(std::shared_ptr<FeedForward> half, OptionalPhase phase)
      : half_(std::move(half)), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, half = half_, x = Input(inputs[0]), y = allocate(out),
                   phase = phase_, type = type_of(out.dtype())] {
      Copies copies;
      half->run(kernels, rows_of(x, placed(x, copies), type, phase), y);
    });
  }

  const char* name() const override { return "tinyllm::FeedForward"; }

 private:
  std::shared_ptr<FeedForward> half_;
  OptionalPhase phase_;
};

class AttentionInputs : public CpuPrimitives {
 public:
  AttentionInputs(std::shared_ptr<AttentionWeights> block, OptionalPhase phase)
      : block_(std::move(block)), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    char* to[] = {allocate(outputs[0]), allocate(outputs[1]), allocate(outputs[2])};
    dispatch(outputs, [&kernels = kernels_, block = block_, x = Input(inputs[0]),
                       positions = Input(inputs[1]), to = std::to_array(to), phase = phase_,
                       type = type_of(outputs[0].dtype())] {
      Copies copies;
      AttentionInputsTask task = block->inputs();
      task.x = placed(x, copies);
      task.batch = x.shape[0], task.length = x.shape[1];
      task.phase = phase_of(x, phase);
      task.positions = static_cast<const int32_t*>(placed(positions, copies));
      task.one_row = positions.shape[0] == 1;
      Heads* heads[] = {&task.to_q, &task.to_k, &task.to_v};
      for (int i = 0; i < 3; ++i) {
        const int64_t count = i ? task.kv_heads : task.heads, head = task.length * task.dim;
        *heads[i] = {to[i], {count * head, head, task.dim}};
      }
      task.type = type;
      run(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::AttentionInputs"; }

 private:
  std::shared_ptr<AttentionWeights> block_;
  OptionalPhase phase_;
};

class Blocks : public CpuPrimitives {
 public:
  Blocks(std::vector<BlockWeights> blocks, int offset, OptionalPhase phase)
      : blocks_(std::move(blocks)), offset_(offset), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    let_go(inputs, outputs);
    char* y = allocate(outputs[0]);
    std::vector<TakenOver> stores;
    for (size_t i = 1; i < inputs.size(); ++i) stores.emplace_back(inputs[i], outputs[i]);
    dispatch(outputs, [&kernels = kernels_, blocks = blocks_, offset = offset_, y,
                       x = Input(inputs[0]), stores = std::move(stores), phase = phase_,
                       type = type_of(outputs[0].dtype())] {
      Copies copies;
      const void* row = placed(x, copies);
      Relay relay(blocks, x.size * size_of(type), y);
      std::vector<int32_t> positions(x.shape[1]);
      std::iota(positions.begin(), positions.end(), offset);
      for (size_t i = 0; i < blocks.size(); ++i) {
        const AttentionWeights& told = *blocks[i].attention;
        AttentionBlockTask task{.inputs = told.inputs()};
        task.inputs.x = row, task.inputs.type = type;
        task.inputs.batch = x.shape[0], task.inputs.length = x.shape[1];
        task.inputs.phase = phase_of(x, phase);
        task.inputs.positions = positions.data(), task.inputs.one_row = true;
        task.inputs.to_k = new_heads(stores[2 * i], offset, type);
        task.inputs.to_v = new_heads(stores[2 * i + 1], offset, type);
        task.o = told.o(), task.o_bias = told.o_bias();
        task.residual = told.residual() ? row : nullptr;
        task.offset = offset;
        task.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(task.inputs.dim)));
        row = relay.put([&](char* y) {
          task.y = y;
          run(kernels, task);
        });
        if (!blocks[i].second) continue;
        const Rows rows = rows_of(x, row, type, phase);
        row = relay.put([&](char* y) { blocks[i].second->run(kernels, rows, y); });
      }
    });
  }

  const char* name() const override { return "tinyllm::Blocks"; }

 private:
  // Where those of tokens from `offset` on belong among the keys, or values, `B Hkv capacity D`.
  static Heads new_heads(const TakenOver& store, int64_t offset, Type type) {
    const int64_t dim = store.shape()[3], head = store.shape()[2] * dim;
    return {store.numbers() + offset * dim * size_of(type), {store.shape()[1] * head, head, dim}};
  }

  std::vector<BlockWeights> blocks_;
  int offset_;
  OptionalPhase phase_;
};

// Throws std::invalid_argument if the new keys or values of x do not fit into `store`.
void check_store(const mx::array& x, const AttentionInputsTask& block, const mx::array& store,
                 int offset) {
  require(x.ndim() == 3 && x.shape(2) == block.q.columns,
          "x: expected the shape B L E of the weights");
  require(store.ndim() == 4 && store.shape(0) == x.shape(0) && store.shape(1) == block.kv_heads &&
              store.shape(3) == block.dim && store.dtype() == x.dtype(),
          "stores: expected the shape B Hkv capacity D and the dtype of x");
  require(offset >= 0 && x.shape(1) <= store.shape(2) - offset,
          "offset: expected room in the stores for all tokens of x");
}

}  // namespace

mx::array feed_forward(const mx::array& x, std::shared_ptr<FeedForward> half,
                       OptionalPhase phase) {
  return mx::array(x.shape(), x.dtype(), std::make_shared<FeedForwardHalf>(std::move(half), phase),
                   {x});
}

std::vector<mx::array> attention_inputs(const mx::array& x,
                                        std::shared_ptr<AttentionWeights> block,
                                        const mx::array& positions, OptionalPhase phase) {
  const AttentionInputsTask& told = block->inputs();
  require(x.ndim() == 3 && x.shape(2) == told.q.columns, "x: expected the shape B L E of the weights");
  require(positions.ndim() == 2 && positions.shape(1) == x.shape(1) &&
              (positions.shape(0) == 1 || positions.shape(0) == x.shape(0)) &&
              positions.dtype() == mx::int32,
          "positions: expected the shape 1 L or B L, and int32");
  const auto heads_of = [&](int64_t heads) {
    return mx::Shape{x.shape(0), static_cast<int>(heads), x.shape(1), static_cast<int>(told.dim)};
  };
  const mx::Shape q = heads_of(told.heads), k = heads_of(told.kv_heads);
  return mx::array::make_arrays({q, k, k}, {x.dtype(), x.dtype(), x.dtype()},
                                std::make_shared<AttentionInputs>(std::move(block), phase),
                                {x, positions});
}

std::vector<mx::array> blocks(const mx::array& x, std::vector<BlockWeights> blocks,
                              const std::vector<mx::array>& stores, int offset,
                              OptionalPhase phase) {
  require(stores.size() == 2 * blocks.size(), "stores: expected keys and values of each block");
  for (size_t i = 0; i < stores.size(); ++i) {
    check_store(x, blocks[i / 2].attention->inputs(), stores[i], offset);
  }
  std::vector<mx::array> inputs = {x};
  inputs.insert(inputs.end(), stores.begin(), stores.end());
  return same_shapes(inputs, inputs.size(),
                     std::make_shared<Blocks>(std::move(blocks), offset, phase));
}

}  // namespace tinyllm
