#include <algorithm>
#include <memory>

#include "input.h"
#include "primitive.h"
#include "primitives.h"
#include "thread_pool.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

Mode mode_of(const WeightArrays& w) {
  if (!w.scales) return Mode::dense;
  if (w.mode == "affine") return Mode::affine;
  if (w.mode == "mxfp4") return Mode::mxfp4;
  if (w.mode == "mxfp8") return Mode::mxfp8;
  if (w.mode == "nvfp4") return Mode::nvfp4;
  throw std::invalid_argument("mode: expected affine, mxfp4, mxfp8 or nvfp4, got " + w.mode);
}

// Everything about a weight but where it lies.
Weights describe(const WeightArrays& w, int columns) {
  Weights found{};
  found.rows = w.w.shape(-2);
  found.columns = columns;
  found.bits = w.bits;
  found.group = w.group_size;
  found.mode = mode_of(w);
  found.type = type_of(w.scales ? w.scales->dtype() : w.w.dtype());
  return found;
}

std::vector<mx::array> inputs_of(const mx::array& x, const WeightArrays& w) {
  std::vector<mx::array> inputs = {x, w.w};
  if (w.scales) inputs.push_back(*w.scales);
  if (w.biases) inputs.push_back(*w.biases);
  return inputs;
}

// The parts of a weight among the inputs, from the second on.
struct WeightInputs {
  WeightInputs(const std::vector<mx::array>& inputs, Mode mode) {
    parts.emplace_back(inputs[1]);
    if (mode != Mode::dense) parts.emplace_back(inputs[2]);
    if (mode == Mode::affine) parts.emplace_back(inputs[3]);
  }

  // Where the parts lie, from matrix `expert` of a stack on.
  void place(Weights& w, int64_t expert, std::unique_ptr<char[]> (&copies)[3]) const {
    const void** places[] = {&w.data, &w.scales, &w.biases};
    for (size_t i = 0; i < parts.size(); ++i) {
      const Input& part = parts[i];
      const char* data = static_cast<const char*>(part.compact(copies[i]));
      const int64_t matrices = part.shape.size() == 3 ? part.shape[0] : 1;
      *places[i] = data + expert * (part.size / matrices) * static_cast<int64_t>(part.itemsize);
    }
  }

  std::vector<Input> parts;
};

// Rows of x as floats: x itself, or a copy.
const float* as_floats(const Kernels& kernels, const void* x, Type type, int64_t count,
                       std::unique_ptr<float[]>& copy) {
  if (type == Type::float32) return static_cast<const float*>(x);
  copy.reset(new float[count]);
  constexpr int64_t kChunk = 1 << 16;
  ThreadPool::shared().run((count + kChunk - 1) / kChunk, [&](int64_t part, int) {
    const int64_t at = part * kChunk;
    kernels.to_floats(static_cast<const char*>(x) + at * 2, type, copy.get() + at,
                      std::min(kChunk, count - at));
  });
  return copy.get();
}

void multiply(const Kernels& kernels, LinearTask task) {
  const Weights& w = *task.w;
  std::unique_ptr<float[]> sums;
  if (w.mode == Mode::affine && task.rows <= kFewRows) {
    const int64_t groups = task.rows * (w.columns / w.group);
    sums.reset(new float[groups]);
    kernels.group_sums(task.x, groups, w.group, sums.get());
    task.sums = sums.get();
  }
  std::unique_ptr<int8_t[]> planes;
  std::unique_ptr<float[]> plane_scales;
  if (task.rows <= kFewRows && kernels.linear_takes_planes(w, task.type)) {
    const int64_t count = task.rows * w.columns;
    planes.reset(new int8_t[2 * count]);
    plane_scales.reset(new float[count / w.group]);
    kernels.linear_planes(task.x, count, w, planes.get(), plane_scales.get());
    task.planes = planes.get(), task.plane_scales = plane_scales.get();
  }
  ThreadPool& pool = ThreadPool::shared();
  const int64_t needed = kernels.linear_scratch(task);
  std::vector<std::unique_ptr<float[]>> scratch(pool.threads());
  pool.run(kernels.linear_parts(task), [&](int64_t part, int thread) {
    if (needed && !scratch[thread]) scratch[thread].reset(new float[needed]);
    kernels.linear_part(task, part, scratch[thread].get());
  });
}

class Linear : public CpuPrimitive {
 public:
  Linear(Weights w, bool biased) : w_(w), biased_(biased) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    std::vector<Input> bias;
    if (biased_) bias.emplace_back(inputs.back());
    const Type type = type_of(out.dtype());
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), w = w_, type, bias,
                   parts = WeightInputs(inputs, w_.mode), y = allocate(out)]() mutable {
      std::unique_ptr<char[]> copies[3], x_copy, bias_copy;
      std::unique_ptr<float[]> floats;
      parts.place(w, 0, copies);
      const float* rows = as_floats(kernels, x.compact(x_copy), type, x.size, floats);
      const void* added = bias.empty() ? nullptr : bias[0].compact(bias_copy);
      multiply(kernels, {.x = rows, .rows = x.size / w.columns, .w = &w, .bias = added, .y = y,
                         .type = type});
    });
  }

  const char* name() const override { return "tinyllm::Linear"; }

 private:
  Weights w_;
  bool biased_;
};

class ExpertLinear : public CpuPrimitive {
 public:
  explicit ExpertLinear(Weights w) : w_(w) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const Type type = type_of(out.dtype());
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), experts = Input(inputs.back()),
                   parts = WeightInputs(inputs, w_.mode), w = w_, type, y = allocate(out),
                   itemsize = out.itemsize()]() mutable {
      std::unique_ptr<char[]> copies[3], x_copy, experts_copy;
      std::unique_ptr<float[]> floats;
      const float* rows = as_floats(kernels, x.compact(x_copy), type, x.size, floats);
      const int32_t* chosen = static_cast<const int32_t*>(experts.compact(experts_copy));
      for (int64_t first = 0, last; first < experts.size; first = last) {
        for (last = first + 1; last < experts.size && chosen[last] == chosen[first];) ++last;
        parts.place(w, chosen[first], copies);
        multiply(kernels, {.x = rows + first * w.columns, .rows = last - first, .w = &w,
                           .y = y + first * w.rows * static_cast<int64_t>(itemsize),
                           .type = type});
      }
    });
  }

  const char* name() const override { return "tinyllm::ExpertLinear"; }

 private:
  Weights w_;
};

}  // namespace

mx::array linear(const mx::array& x, const WeightArrays& w, const std::optional<mx::array>& bias) {
  std::vector<mx::array> inputs = inputs_of(x, w);
  if (bias) inputs.push_back(*bias);
  const Weights weights = describe(w, x.shape(-1));
  mx::Shape shape = x.shape();
  shape.back() = weights.rows;
  auto primitive = std::make_shared<Linear>(weights, bias.has_value());
  return mx::array(shape, x.dtype(), std::move(primitive), std::move(inputs));
}

mx::array expert_linear(const mx::array& x, const WeightArrays& w, const mx::array& experts) {
  std::vector<mx::array> inputs = inputs_of(x, w);
  inputs.push_back(experts);
  const Weights weights = describe(w, x.shape(-1));
  auto primitive = std::make_shared<ExpertLinear>(weights);
  return mx::array({x.shape(0), weights.rows}, x.dtype(), std::move(primitive), std::move(inputs));
}

}  // namespace tinyllm
