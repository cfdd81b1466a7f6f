#include <algorithm>
#include <cstring>
#include <memory>

#include "mlx/inputs.h"
#include "mlx/primitive.h"
#include "mlx/operations.h"
#include "layers/attention.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

// Inputs one after the other, and the copies that had to be made of them.
class Operands {
 public:
  explicit Operands(const std::vector<Input>& inputs) : inputs_(inputs) {}

  const Input& next() { return inputs_[next_++]; }
  bool more() const { return next_ < inputs_.size(); }

  // The next one's numbers, and its strides but the last, which must have no gaps.
  const char* rows(std::vector<int64_t>& strides) {
    const Input& x = next();
    strides = x.strides;
    strides.pop_back();
    if (x.has_whole_rows()) return static_cast<const char*>(x.data);
    int64_t stride = x.shape.back();
    for (size_t axis = strides.size(); axis-- > 0; stride *= x.shape[axis]) strides[axis] = stride;
    return static_cast<const char*>(compact(x));
  }

  const void* compact(const Input& x) { return x.compact(copies_.emplace_back()); }

  KeyValues::StridedRows part() {
    const int64_t itemsize = static_cast<int64_t>(inputs_[next_].itemsize);
    KeyValues::StridedRows part;
    std::vector<int64_t> strides;
    part.data = rows(strides);
    for (int axis = 0; axis < 3; ++axis) part.strides[axis] = strides[axis] * itemsize;
    return part;
  }

  void place(KeyValues& kv) {
    kv.codes = part();
    if (kv.mode != Mode::dense) kv.scales = part();
    if (kv.mode == Mode::affine) kv.biases = part();
  }

 private:
  const std::vector<Input>& inputs_;
  size_t next_ = 0;
  std::vector<std::unique_ptr<char[]>> copies_;
};

std::vector<mx::array> arrays(const mx::array& q, const WeightArrays& k, const WeightArrays& v) {
  std::vector<mx::array> found = {q};
  append(found, k);
  append(found, v);
  return found;
}

class Attention : public CpuPrimitive {
 public:
  explicit Attention(const AttentionTask& task) : task_(task) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, inputs = std::vector<Input>(inputs.begin(), inputs.end()),
                   task = task_, y = allocate(out)]() mutable {
      Operands operands(inputs);
      std::vector<int64_t> strides;
      task.q = operands.rows(strides);
      std::copy_n(strides.begin(), 3, task.q_strides);
      operands.place(task.k), operands.place(task.v);
      const std::vector<int64_t>& shape = inputs[0].shape;  // B H L D
      task.requests = shape[0], task.heads = shape[1], task.length = shape[2], task.dim = shape[3];
      task.kv_heads = inputs[1].shape[1], task.keys = inputs[1].shape[2];
      task.y = y;
      task.y_strides[2] = task.dim, task.y_strides[1] = task.length * task.dim;
      task.y_strides[0] = task.heads * task.y_strides[1];
      if (operands.more()) {
        const Input& mask = operands.next();
        task.mask = mask.data;
        std::copy_n(mask.strides.begin(), 4, task.mask_strides);
      }
      run_attention(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::Attention"; }

 private:
  AttentionTask task_;
};

class PagedAttention : public CpuPrimitive {
 public:
  explicit PagedAttention(const AttentionTask& task) : task_(task) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, inputs = std::vector<Input>(inputs.begin(), inputs.end()),
                   task = task_, y = allocate(out), bytes = out.nbytes()]() mutable {
      Operands operands(inputs);
      std::vector<int64_t> strides;
      task.q = operands.rows(strides);
      task.q_strides[1] = strides[1], task.q_strides[2] = strides[0];
      operands.place(task.k), operands.place(task.v);
      const std::vector<int64_t>& shape = inputs[0].shape;  // T H D
      task.heads = shape[1], task.dim = shape[2];
      task.tokens = shape[0], task.pages = inputs[1].shape[0];
      task.kv_heads = inputs[1].shape[1], task.page_size = inputs[1].shape[2];
      task.y = y;
      task.y_strides[1] = task.dim, task.y_strides[2] = task.heads * task.dim;
      const Input& table = operands.next();
      task.requests = table.shape[0], task.block_table_width = table.shape[1];
      task.block_table = static_cast<const int32_t*>(operands.compact(table));
      task.cu_seqlens_q = static_cast<const int32_t*>(operands.compact(operands.next()));
      task.seq_lens = static_cast<const int32_t*>(operands.compact(operands.next()));
      std::memset(y, 0, bytes);  // tokens that belong to no request
      run_attention(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::PagedAttention"; }

 private:
  AttentionTask task_;
};

// What does not depend on where anything lies.
AttentionTask describe(const mx::array& q, const WeightArrays& k, const WeightArrays& v,
                       float scale, bool causal, OptionalPhase phase) {
  AttentionTask task;
  task.type = type_of(q.dtype());
  task.k = describe(k), task.v = describe(v);
  task.scale = scale;
  task.causal = causal;
  task.decode_queries = decode_queries(phase);
  return task;
}

}  // namespace

mx::array attention(const mx::array& q, const WeightArrays& k, const WeightArrays& v, float scale,
                    bool causal, const std::optional<mx::array>& mask, OptionalPhase phase) {
  AttentionTask task = describe(q, k, v, scale, causal, phase);
  std::vector<mx::array> inputs = arrays(q, k, v);
  if (mask) {
    task.mask_type = type_of(mask->dtype());
    inputs.push_back(*mask);
  }
  return mx::array(q.shape(), q.dtype(), std::make_shared<Attention>(task), std::move(inputs));
}

mx::array paged_attention(const mx::array& q, const WeightArrays& k, const WeightArrays& v,
                          const mx::array& block_table, const mx::array& query_starts,
                          const mx::array& context_lengths, float scale, int window,
                          OptionalPhase phase) {
  AttentionTask task = describe(q, k, v, scale, true, phase);
  task.window = window;
  std::vector<mx::array> inputs = arrays(q, k, v);
  inputs.insert(inputs.end(), {block_table, query_starts, context_lengths});
  return mx::array(q.shape(), q.dtype(), std::make_shared<PagedAttention>(task),
                   std::move(inputs));
}

}  // namespace tinyllm
