// The halves of a transformer block as primitives of MLX.

#include <array>
#include <cmath>
#include <cstring>

#include "attention_block.h"
#include "mlp_block.h"
#include "primitive.h"
#include "primitives.h"
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
        eps(block.eps) {}

  Input norm;
  WeightInput gate, up, down;
  float eps;
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

// The inputs of a block from `at` on, in the order in which `AttentionWeights` has them.
struct AttentionInputsOf {
  AttentionInputsOf(const AttentionWeights& block, const std::vector<mx::array>& inputs, size_t at)
      : block(block), frequencies(inputs[at++]) {
    for (bool present : block.normed) norms.emplace_back(present, inputs, at);
    const Weights* weights[] = {&block.q, &block.k, &block.v, &block.o};
    for (int i = 0; i < 4; ++i) {
      projections.emplace_back(*weights[i], inputs, at);
      biases.emplace_back(block.biased[i], inputs, at);
    }
  }

  // All of a task but x, the positions, and where the results go.
  AttentionInputsTask task(Copies& copies) const {
    AttentionInputsTask found{};
    Norm* of[] = {&found.norm, &found.q_norm, &found.k_norm};
    for (int i = 0; i < 3; ++i) *of[i] = {norms[i].placed(copies), block.eps[i]};
    found.q = projections[0].placed(copies), found.q_bias = biases[0].placed(copies);
    found.k = projections[1].placed(copies), found.k_bias = biases[1].placed(copies);
    found.v = projections[2].placed(copies), found.v_bias = biases[2].placed(copies);
    found.heads = block.heads(), found.kv_heads = block.kv_heads(), found.dim = block.dim;
    found.frequencies = static_cast<const float*>(placed(frequencies, copies));
    found.traditional = block.traditional, found.magnitude = block.magnitude;
    return found;
  }

  const AttentionWeights& block;  // which the primitive keeps
  Input frequencies;
  std::vector<OptionalInput> norms, biases;
  std::vector<WeightInput> projections;
};

class AttentionInputs : public CpuPrimitives {
 public:
  explicit AttentionInputs(std::shared_ptr<AttentionWeights> block) : block_(std::move(block)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    char* to[] = {allocate(outputs[0]), allocate(outputs[1]), allocate(outputs[2])};
    dispatch(outputs, [&kernels = kernels_, x = Input(inputs[0]), positions = Input(inputs[1]),
                       keep = block_, block = AttentionInputsOf(*block_, inputs, 2), to = std::to_array(to),
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
    // Each output holds all inputs, and none could be taken over. They let go of them at the end of
    // the evaluation in any case; the one whose inputs these are is enough until then.
    for (mx::array& out : outputs) {
      if (&out.inputs() != &inputs) out.inputs().clear();
    }
    char* y = allocate(outputs[0]);
    char* keys = taken_over(inputs[1], outputs[1]);
    char* values = taken_over(inputs[2], outputs[2]);
    dispatch(outputs, [&kernels = kernels_, x = Input(inputs[0]), old_keys = Input(inputs[1]),
                       old_values = Input(inputs[2]), keep = block_,
                       block = AttentionInputsOf(*block_, inputs, 3),
                       y, keys, values, offset = offset_, type = type_of(outputs[0].dtype())] {
      Copies copies;
      copy_unless_same(old_keys, keys);
      copy_unless_same(old_values, values);
      AttentionBlockTask task{.inputs = block.task(copies)};
      task.inputs.x = placed(x, copies);
      task.inputs.batch = x.shape[0], task.inputs.length = x.shape[1];
      std::vector<int32_t> positions(x.shape[1]);
      for (size_t i = 0; i < positions.size(); ++i) positions[i] = offset + static_cast<int>(i);
      task.inputs.positions = positions.data(), task.inputs.one_row = true;
      task.inputs.type = type;
      const int64_t dim = keep->dim, head = old_keys.shape[2] * dim;
      const int64_t first = offset * dim * size_of(type);
      task.inputs.to_k = {keys + first, {keep->kv_heads() * head, head, dim}};
      task.inputs.to_v = {values + first, {keep->kv_heads() * head, head, dim}};
      task.o = block.projections[3].placed(copies), task.o_bias = block.biases[3].placed(copies);
      task.offset = offset;
      task.scale = 1 / std::sqrt(static_cast<float>(dim));
      task.y = y;
      run(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::AttentionBlock"; }

 private:
  // The memory of `from` if nobody else will read it, or memory for a copy of it.
  static char* taken_over(const mx::array& from, mx::array& to) {
    if (!from.is_donatable() || !from.flags().row_contiguous) return allocate(to);
    to.copy_shared_buffer(from);
    return to.data<char>();
  }

  static void copy_unless_same(const Input& from, char* to) {
    if (from.data == to) return;
    std::unique_ptr<char[]> copy;
    std::memcpy(to, from.compact(copy), from.size * from.itemsize);
  }

  std::shared_ptr<AttentionWeights> block_;
  int offset_;
};

}  // namespace

MlpWeights::MlpWeights(const NormArrays& norm, const WeightArrays& gate, const WeightArrays& up,
                       const WeightArrays& down)
    : gate(describe(gate, norm.weight.value().shape(0))),
      up(describe(up, this->gate.columns)),
      down(describe(down, this->gate.rows)),
      eps(norm.eps),
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
                                   const NormArrays& k_norm)
    : q(describe(q.weight, o.weight.w.shape(-2))),
      k(describe(k.weight, this->q.columns)),
      v(describe(v.weight, this->q.columns)),
      o(describe(o.weight, this->q.rows)),
      dim(head_dim),
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
