// The halves of a transformer block as primitives of MLX.

#include <array>
#include <cmath>

#include "attention_block.h"
#include "attention_weight_inputs.h"
#include "mlp_block.h"
#include "primitive.h"
#include "primitives.h"
#include "taken_over.h"
#include "weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

// The inputs of an MLP from `at` on.
struct MlpInputsOf {
  MlpInputsOf(const MlpWeights& block, const std::vector<mx::array>& inputs, size_t at)
      : norm(inputs[at++]),
        gate(block.gate, inputs, at),
        up(block.up, inputs, at),
        down(block.down, inputs, at),
        eps(block.eps),
        residual(block.residual) {}

  Input norm;
  WeightInput gate, up, down;
  float eps;
  bool residual;
};

class MlpBlock : public CpuPrimitive {
 public:
  explicit MlpBlock(std::shared_ptr<MlpWeights> block) : block_(std::move(block)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]),
                   block = MlpInputsOf(*block_, inputs, 1), y = allocate(out),
                   type = type_of(out.dtype())] {
      Copies copies;
      MlpBlockTask task{};
      task.x = placed(x, copies);
      task.residual = block.residual ? task.x : nullptr;
      task.rows = x.size / x.shape.back(), task.tokens = tokens_of(x);
      task.norm = {placed(block.norm, copies), block.eps};
      task.gate = block.gate.placed(copies), task.up = block.up.placed(copies);
      task.down = block.down.placed(copies);
      task.y = y;
      task.type = type;
      run(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::MlpBlock"; }

 private:
  std::shared_ptr<MlpWeights> block_;
};

class AttentionInputs : public CpuPrimitives {
 public:
  explicit AttentionInputs(std::shared_ptr<AttentionWeights> block) : block_(std::move(block)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    char* to[] = {allocate(outputs[0]), allocate(outputs[1]), allocate(outputs[2])};
    dispatch(outputs, [&kernels = kernels_, x = Input(inputs[0]), positions = Input(inputs[1]),
                       block = AttentionWeightInputs(block_, inputs, 2), to = std::to_array(to),
                       type = type_of(outputs[0].dtype())] {
      Copies copies;
      AttentionInputsTask task = block.task(copies);
      task.x = placed(x, copies);
      task.batch = x.shape[0], task.length = x.shape[1];
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
};

class AttentionBlock : public CpuPrimitives {
 public:
  AttentionBlock(std::shared_ptr<AttentionWeights> block, int offset)
      : block_(std::move(block)), offset_(offset) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    let_go(inputs, outputs);
    char* y = allocate(outputs[0]);
    dispatch(outputs, [&kernels = kernels_, x = Input(inputs[0]), y, offset = offset_,
                       taken_keys = TakenOver(inputs[1], outputs[1]),
                       taken_values = TakenOver(inputs[2], outputs[2]),
                       block = AttentionWeightInputs(block_, inputs, 3),
                       type = type_of(outputs[0].dtype())] {
      Copies copies;
      char* keys = taken_keys.numbers();
      char* values = taken_values.numbers();
      AttentionBlockTask task{.inputs = block.task(copies)};
      task.inputs.x = placed(x, copies);
      task.inputs.batch = x.shape[0], task.inputs.length = x.shape[1];
      std::vector<int32_t> positions(x.shape[1]);
      for (size_t i = 0; i < positions.size(); ++i) positions[i] = offset + static_cast<int>(i);
      task.inputs.positions = positions.data(), task.inputs.one_row = true;
      task.inputs.type = type;
      const int64_t dim = task.inputs.dim, head = taken_keys.shape()[2] * dim;
      const int64_t first = offset * dim * size_of(type);
      task.inputs.to_k = {keys + first, {task.inputs.kv_heads * head, head, dim}};
      task.inputs.to_v = {values + first, {task.inputs.kv_heads * head, head, dim}};
      task.o = block.o(copies), task.o_bias = block.o_bias(copies);
      task.residual = block.residual(task.inputs.x);
      task.offset = offset;
      task.scale = 1 / std::sqrt(static_cast<float>(dim));
      task.y = y;
      run(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::AttentionBlock"; }

 private:
  std::shared_ptr<AttentionWeights> block_;
  int offset_;
};

}  // namespace

MlpWeights::MlpWeights(const NormArrays& norm, const WeightArrays& gate, const WeightArrays& up,
                       const WeightArrays& down, bool residual)
    : gate(describe(gate, norm.weight.value().shape(0))),
      up(describe(up, this->gate.columns)),
      down(describe(down, this->gate.rows)),
      eps(norm.eps),
      residual(residual),
      arrays({norm.weight.value()}) {
  for (const WeightArrays* w : {&gate, &up, &down}) append(arrays, *w);
}

mx::array mlp_block(const mx::array& x, std::shared_ptr<MlpWeights> block) {
  std::vector<mx::array> inputs = {x};
  inputs.insert(inputs.end(), block->arrays.begin(), block->arrays.end());
  return mx::array(x.shape(), x.dtype(), std::make_shared<MlpBlock>(std::move(block)),
                   std::move(inputs));
}

AttentionWeights::AttentionWeights(const NormArrays& norm, const ProjectionArrays& q,
                                   const ProjectionArrays& k, const ProjectionArrays& v,
                                   const ProjectionArrays& o, int head_dim,
                                   const RotaryArrays& rotary, const NormArrays& q_norm,
                                   const NormArrays& k_norm, bool residual)
    : q(describe(q.weight, o.weight.w.shape(-2))),
      k(describe(k.weight, this->q.columns)),
      v(describe(v.weight, this->q.columns)),
      o(describe(o.weight, this->q.rows)),
      dim(head_dim),
      residual(residual),
      traditional(rotary.traditional),
      magnitude(rotary.magnitude),
      eps{norm.eps, q_norm.eps, k_norm.eps},
      normed{norm.weight.has_value(), q_norm.weight.has_value(), k_norm.weight.has_value()},
      biased{q.bias.has_value(), k.bias.has_value(), v.bias.has_value(), o.bias.has_value()},
      arrays({rotary.frequencies}) {
  for (const NormArrays* each : {&norm, &q_norm, &k_norm}) append(arrays, each->weight);
  for (const ProjectionArrays* each : {&q, &k, &v, &o}) {
    append(arrays, each->weight);
    append(arrays, each->bias);
  }
}

std::vector<mx::array> attention_inputs(const mx::array& x,
                                        std::shared_ptr<AttentionWeights> block,
                                        const mx::array& positions) {
  std::vector<mx::array> inputs = {x, positions};
  inputs.insert(inputs.end(), block->arrays.begin(), block->arrays.end());
  const mx::Shape q = {x.shape(0), block->heads(), x.shape(1), block->dim};
  const mx::Shape k = {x.shape(0), block->kv_heads(), x.shape(1), block->dim};
  return mx::array::make_arrays({q, k, k}, {x.dtype(), x.dtype(), x.dtype()},
                                std::make_shared<AttentionInputs>(std::move(block)), inputs);
}

std::vector<mx::array> attention_block(const mx::array& x,
                                       std::shared_ptr<AttentionWeights> block,
                                       const mx::array& keys, const mx::array& values,
                                       int offset) {
  std::vector<mx::array> inputs = {x, keys, values};
  inputs.insert(inputs.end(), block->arrays.begin(), block->arrays.end());
  return mx::array::make_arrays({x.shape(), keys.shape(), values.shape()},
                                {x.dtype(), keys.dtype(), values.dtype()},
                                std::make_shared<AttentionBlock>(std::move(block), offset),
                                inputs);
}

}  // namespace tinyllm
