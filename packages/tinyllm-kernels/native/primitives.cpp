#include "primitives.h"

#include <algorithm>
#include <memory>

#include "input.h"
#include "primitive.h"
#include "thread_pool.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

// Calls `work(first, last)` over 0..count-1 on all threads, in chunks that are worth a thread.
template <typename Work>
void in_chunks(int64_t count, int64_t chunk, Work work) {
  ThreadPool::shared().run((count + chunk - 1) / chunk, [&](int64_t part, int) {
    work(part * chunk, std::min(count, (part + 1) * chunk));
  });
}

constexpr int64_t kNumbersAThread = 1 << 14;

class RmsNorm : public CpuPrimitive {
 public:
  explicit RmsNorm(float eps) : eps_(eps) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), weight = Input(inputs[1]),
                   y = allocate(out), eps = eps_, type = type_of(out.dtype())] {
      std::unique_ptr<char[]> x_copy, weight_copy;
      const int64_t width = x.shape.back();
      RmsNormTask task{x.compact(x_copy), weight.compact(weight_copy), y, width, eps, type};
      in_chunks(x.size / width, std::max<int64_t>(kNumbersAThread / width, 1),
                [&](int64_t first, int64_t last) { kernels.rms_norm_rows(task, first, last); });
    });
  }

  const char* name() const override { return "tinyllm::RmsNorm"; }

 private:
  float eps_;
};

class Swiglu : public CpuPrimitive {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, gate = Input(inputs[0]), up = Input(inputs[1]),
                   y = allocate(out), type = type_of(out.dtype())] {
      std::unique_ptr<char[]> gate_copy, up_copy;
      SwigluTask task{gate.compact(gate_copy), up.compact(up_copy), y, type};
      in_chunks(gate.size, kNumbersAThread,
                [&](int64_t first, int64_t last) { kernels.swiglu_range(task, first, last); });
    });
  }

  const char* name() const override { return "tinyllm::Swiglu"; }
};

class Rope : public CpuPrimitive {
 public:
  Rope(bool traditional, float magnitude) : traditional_(traditional), magnitude_(magnitude) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), positions = Input(inputs[1]),
                   frequencies = Input(inputs[2]), y = allocate(out),
                   type = type_of(out.dtype()), traditional = traditional_,
                   magnitude = magnitude_] {
      std::unique_ptr<char[]> x_copy, positions_copy, frequencies_copy;
      const int64_t length = x.shape[1], heads = x.shape[2], dim = x.shape[3];
      RopeTask task{};
      std::copy_n(x.strides.begin(), 3, task.strides);
      task.x = x.data;
      if (!x.has_whole_rows()) {
        task.x = x.compact(x_copy);
        task.strides[0] = length * heads * dim, task.strides[1] = heads * dim;
        task.strides[2] = dim;
      }
      task.y = y;
      task.positions = static_cast<const int32_t*>(positions.compact(positions_copy));
      task.frequencies = static_cast<const float*>(frequencies.compact(frequencies_copy));
      task.length = length, task.heads = heads, task.dim = dim;
      task.one_row = positions.shape[0] == 1;
      task.traditional = traditional;
      task.magnitude = magnitude;
      task.type = type;
      in_chunks(x.shape[0] * length, std::max<int64_t>(kNumbersAThread / (heads * dim), 1),
                [&](int64_t first, int64_t last) { kernels.rope_tokens(task, first, last); });
    });
  }

  const char* name() const override { return "tinyllm::Rope"; }

 private:
  bool traditional_;
  float magnitude_;
};

class Attention : public CpuPrimitive {
 public:
  Attention(float scale, bool causal) : scale_(scale), causal_(causal) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    std::vector<Input> operands(inputs.begin(), inputs.end());
    const Type mask_type = inputs.size() > 3 ? type_of(inputs[3].dtype()) : Type::float32;
    dispatch(out, [&kernels = kernels_, operands, mask_type, y = allocate(out), scale = scale_,
                   causal = causal_, type = type_of(out.dtype())] {
      AttentionTask task{};
      std::unique_ptr<char[]> copies[3];
      const void** places[] = {&task.q, &task.k, &task.v};
      int64_t* strides[] = {task.q_strides, task.k_strides, task.v_strides};
      for (int i = 0; i < 3; ++i) {
        const Input& operand = operands[i];
        *places[i] = operand.data;
        std::copy_n(operand.strides.begin(), 3, strides[i]);
        if (operand.has_whole_rows()) continue;
        *places[i] = operand.compact(copies[i]);
        strides[i][2] = operand.shape[3];
        strides[i][1] = strides[i][2] * operand.shape[2];
        strides[i][0] = strides[i][1] * operand.shape[1];
      }
      task.y = y;
      task.heads = operands[0].shape[1], task.kv_heads = operands[1].shape[1];
      task.length = operands[0].shape[2], task.keys = operands[1].shape[2];
      task.dim = operands[0].shape[3];
      task.scale = scale;
      task.causal = causal;
      task.type = type;
      if (operands.size() > 3) {
        task.mask = operands[3].data;
        task.mask_type = mask_type;
        std::copy_n(operands[3].strides.begin(), 4, task.mask_strides);
      }
      ThreadPool& pool = ThreadPool::shared();
      std::vector<std::unique_ptr<float[]>> scratch(pool.threads());
      const int64_t rows = operands[0].shape[0] * task.heads * task.length;
      pool.run(rows, [&](int64_t row, int thread) {
        if (!scratch[thread]) scratch[thread].reset(new float[kernels.attention_scratch(task)]);
        kernels.attention_row(task, row, scratch[thread].get());
      });
    });
  }

  const char* name() const override { return "tinyllm::Attention"; }

 private:
  float scale_;
  bool causal_;
};

template <typename Primitive, typename... Arguments>
mx::array make(const mx::array& like, std::vector<mx::array> inputs, Arguments... arguments) {
  return mx::array(like.shape(), like.dtype(), std::make_shared<Primitive>(arguments...),
                   std::move(inputs));
}

}  // namespace

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps) {
  return make<RmsNorm>(x, {x, weight}, eps);
}

mx::array swiglu(const mx::array& gate, const mx::array& up) {
  return make<Swiglu>(gate, {gate, up});
}

mx::array rope(const mx::array& x, const mx::array& positions, const mx::array& frequencies,
               bool traditional, float magnitude) {
  return make<Rope>(x, {x, positions, frequencies}, traditional, magnitude);
}

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale,
                    bool causal, const std::optional<mx::array>& mask) {
  std::vector<mx::array> inputs = {q, k, v};
  if (mask) inputs.push_back(*mask);
  return make<Attention>(q, std::move(inputs), scale, causal);
}

}  // namespace tinyllm
