// Attention over dense caches and over pages as primitives of MLX.

#include <algorithm>
#include <cstring>
#include <memory>

#include "layers/attention.h"
#include "mlx/inputs.h"
#include "mlx/operations.h"
#include "mlx/operations/primitive.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

// Reads the inputs of attention in order. Rows that are not contiguous are copied.
class InputReader {
 public:
  explicit InputReader(const std::vector<Input>& inputs) : inputs_(inputs) {}

  const Input& next() { return inputs_[next_++]; }
  bool has_next() const { return next_ < inputs_.size(); }

  // Returns the numbers of the next input and sets the strides of all axes but the last, whose
  // numbers are contiguous.
  const char* next_rows(std::vector<int64_t>& strides) {
    const Input& x = next();
    strides = x.strides;
    strides.pop_back();
    if (x.has_contiguous_rows()) return static_cast<const char*>(x.data);
    int64_t stride = x.shape.back();
    for (size_t axis = strides.size(); axis-- > 0; stride *= x.shape[axis]) strides[axis] = stride;
    return static_cast<const char*>(contiguous(x));
  }

  const void* contiguous(const Input& x) { return contiguous_data(x, copies_); }

  // Reads the next input as one array of keys or values.
  KeyValues::StridedRows next_array() {
    const int64_t itemsize = static_cast<int64_t>(inputs_[next_].itemsize);
    KeyValues::StridedRows rows;
    std::vector<int64_t> strides;
    rows.data = next_rows(strides);
    for (int axis = 0; axis < 3; ++axis) rows.strides[axis] = strides[axis] * itemsize;
    return rows;
  }

  // Reads all arrays of the keys or values whose format is `kv`.
  void read(KeyValues& kv) {
    kv.codes = next_array();
    if (kv.mode != Mode::dense) kv.scales = next_array();
    if (kv.mode == Mode::affine) kv.biases = next_array();
  }

 private:
  const std::vector<Input>& inputs_;
  size_t next_ = 0;
  Copies copies_;
};

// Returns the arrays in the order in which `InputReader` reads them.
std::vector<mx::array> inputs_of(const mx::array& q, const WeightArrays& k, const WeightArrays& v) {
  std::vector<mx::array> inputs = {q};
  append(inputs, k);
  append(inputs, v);
  return inputs;
}

class Attention : public CpuPrimitive {
 public:
  explicit Attention(const AttentionTask& task) : task_(task) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, inputs = std::vector<Input>(inputs.begin(), inputs.end()),
                   task = task_, y = allocate(out)]() mutable {
      InputReader reader(inputs);
      std::vector<int64_t> strides;
      task.q = reader.next_rows(strides);
      std::copy_n(strides.begin(), 3, task.q_strides);
      reader.read(task.k);
      reader.read(task.v);
      const std::vector<int64_t>& shape = inputs[0].shape;  // B H L D
      task.requests = shape[0], task.heads = shape[1], task.length = shape[2], task.dim = shape[3];
      task.kv_heads = inputs[1].shape[1], task.keys = inputs[1].shape[2];
      task.y = y;
      task.y_strides[2] = task.dim, task.y_strides[1] = task.length * task.dim;
      task.y_strides[0] = task.heads * task.y_strides[1];
      if (reader.has_next()) {
        const Input& mask = reader.next();
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
      InputReader reader(inputs);
      std::vector<int64_t> strides;
      task.q = reader.next_rows(strides);
      task.q_strides[1] = strides[1], task.q_strides[2] = strides[0];
      reader.read(task.k);
      reader.read(task.v);
      const std::vector<int64_t>& shape = inputs[0].shape;  // T H D
      task.heads = shape[1], task.dim = shape[2];
      task.tokens = shape[0], task.pages = inputs[1].shape[0];
      task.kv_heads = inputs[1].shape[1], task.page_size = inputs[1].shape[2];
      task.y = y;
      task.y_strides[1] = task.dim, task.y_strides[2] = task.heads * task.dim;
      const Input& table = reader.next();
      task.requests = table.shape[0], task.block_table_width = table.shape[1];
      task.block_tables = static_cast<const int32_t*>(reader.contiguous(table));
      task.cu_seqlens_q = static_cast<const int32_t*>(reader.contiguous(reader.next()));
      task.seq_lens = static_cast<const int32_t*>(reader.contiguous(reader.next()));
      std::memset(y, 0, bytes);  // tokens of no request stay zero
      run_attention(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::PagedAttention"; }

 private:
  AttentionTask task_;
};

// Returns a task with everything but data, strides and sizes.
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
  std::vector<mx::array> inputs = inputs_of(q, k, v);
  if (mask) {
    task.mask_type = type_of(mask->dtype());
    inputs.push_back(*mask);
  }
  return mx::array(q.shape(), q.dtype(), std::make_shared<Attention>(task), std::move(inputs));
}

mx::array paged_attention(const mx::array& q, const WeightArrays& k, const WeightArrays& v,
                          const mx::array& block_tables, const mx::array& cu_seqlens_q,
                          const mx::array& seq_lens, float scale, int window,
                          OptionalPhase phase) {
  AttentionTask task = describe(q, k, v, scale, true, phase);
  task.window = window;
  std::vector<mx::array> inputs = inputs_of(q, k, v);
  inputs.insert(inputs.end(), {block_tables, cu_seqlens_q, seq_lens});
  return mx::array(q.shape(), q.dtype(), std::make_shared<PagedAttention>(task), std::move(inputs));
}

}  // namespace tinyllm
