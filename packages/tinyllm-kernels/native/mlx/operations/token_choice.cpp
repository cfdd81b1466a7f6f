// Token choice from logits as primitives of MLX.

#include "layers/token_choice.h"
#include "mlx/inputs.h"
#include "mlx/operations.h"
#include "mlx/operations/primitive.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

ScoreRows rows_of(const Input& x, Type type, Copies& copies) {
  return {contiguous_data(x, copies), x.size / x.shape.back(), x.shape.back(), type};
}

class Argmax : public CpuPrimitive {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), y = allocate(out),
                   type = type_of(inputs[0].dtype())] {
      Copies copies;
      argmax(kernels, rows_of(x, type, copies), reinterpret_cast<int32_t*>(y));
    });
  }

  const char* name() const override { return "tinyllm::Argmax"; }
};

class TopK : public CpuPrimitives {
 public:
  explicit TopK(int k) : k_(k) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    char* best = allocate(outputs[0]);
    char* indices = allocate(outputs[1]);
    dispatch(outputs, [&kernels = kernels_, x = Input(inputs[0]), best, indices, k = k_,
                       type = type_of(inputs[0].dtype())] {
      Copies copies;
      top_k(kernels, rows_of(x, type, copies), k, best, reinterpret_cast<int32_t*>(indices));
    });
  }

  const char* name() const override { return "tinyllm::TopK"; }

 private:
  int k_;
};

class LogProbability : public CpuPrimitive {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), ids = Input(inputs[1]),
                   y = allocate(out), type = type_of(inputs[0].dtype())] {
      Copies copies;
      log_probability(kernels, rows_of(x, type, copies),
                      static_cast<const int32_t*>(contiguous_data(ids, copies)), ids.shape.back(),
                      reinterpret_cast<float*>(y));
    });
  }

  const char* name() const override { return "tinyllm::LogProbability"; }
};

}  // namespace

mx::array argmax(const mx::array& x) {
  mx::Shape shape(x.shape().begin(), x.shape().end() - 1);
  return mx::array(shape, mx::int32, std::make_shared<Argmax>(), {x});
}

std::vector<mx::array> top_k(const mx::array& x, int k) {
  mx::Shape shape = x.shape();
  shape.back() = k;
  return mx::array::make_arrays({shape, shape}, {x.dtype(), mx::int32}, std::make_shared<TopK>(k),
                                {x});
}

mx::array log_probability(const mx::array& x, const mx::array& ids) {
  return mx::array(ids.shape(), mx::float32, std::make_shared<LogProbability>(), {x, ids});
}

}  // namespace tinyllm
