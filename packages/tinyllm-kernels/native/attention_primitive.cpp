#include <algorithm>
#include <memory>

#include "input.h"
#include "primitive.h"
#include "primitives.h"
#include "run_attention.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

// The strides of all axes but the last, which must have no gaps: those of a copy, if it has.
const void* place(const Input& x, int64_t (&strides)[3], std::unique_ptr<char[]>& copy) {
  std::copy_n(x.strides.begin(), 3, strides);
  if (x.has_whole_rows()) return x.data;
  strides[2] = x.shape[3], strides[1] = strides[2] * x.shape[2];
  strides[0] = strides[1] * x.shape[1];
  return x.compact(copy);
}

KeyValues::Part place(const Input& x, std::unique_ptr<char[]>& copy) {
  KeyValues::Part part;
  part.data = static_cast<const char*>(place(x, part.strides, copy));
  for (int64_t& stride : part.strides) stride *= static_cast<int64_t>(x.itemsize);
  return part;
}

class Attention : public CpuPrimitive {
 public:
  Attention(float scale, bool causal) : scale_(scale), causal_(causal) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    std::vector<Input> operands(inputs.begin(), inputs.end());
    AttentionTask task;
    task.type = task.k.type = task.v.type = type_of(out.dtype());
    task.scale = scale_;
    task.causal = causal_;
    if (inputs.size() > 3) task.mask_type = type_of(inputs[3].dtype());
    dispatch(out, [&kernels = kernels_, operands, task, y = allocate(out)]() mutable {
      std::unique_ptr<char[]> copies[3];
      const std::vector<int64_t>& shape = operands[0].shape;  // B H L D
      task.q = place(operands[0], task.q_strides, copies[0]);
      task.k.codes = place(operands[1], copies[1]);
      task.v.codes = place(operands[2], copies[2]);
      task.y = y;
      task.requests = shape[0], task.heads = shape[1], task.length = shape[2], task.dim = shape[3];
      task.y_strides[2] = task.dim, task.y_strides[1] = task.length * task.dim;
      task.y_strides[0] = task.heads * task.y_strides[1];
      task.kv_heads = operands[1].shape[1], task.keys = operands[1].shape[2];
      if (operands.size() > 3) {
        task.mask = operands[3].data;
        std::copy_n(operands[3].strides.begin(), 4, task.mask_strides);
      }
      run_attention(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::Attention"; }

 private:
  float scale_;
  bool causal_;
};

}  // namespace

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale,
                    bool causal, const std::optional<mx::array>& mask) {
  std::vector<mx::array> inputs = {q, k, v};
  if (mask) inputs.push_back(*mask);
  return mx::array(q.shape(), q.dtype(), std::make_shared<Attention>(scale, causal),
                   std::move(inputs));
}

}  // namespace tinyllm
