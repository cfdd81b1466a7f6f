// `run(PagedAttentionBlockTask)` as a primitive of MLX.

#include <cmath>

#include "attention_weight_inputs.h"
#include "paged_attention_block.h"
#include "primitives.h"
#include "taken_over.h"
#include "weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

// Keys or values on their way from inputs to outputs: codes, or codes, scales and biases.
class PageArrays {
 public:
  explicit PageArrays(const WeightArrays& format) : kv_(describe(format)) {}

  size_t count() const { return kv_.mode == Mode::dense ? 1 : 3; }

  // The parts from `at` on, of the inputs, to those of the outputs from `to` on.
  void take(const std::vector<mx::array>& inputs, size_t& at, std::vector<mx::array>& outputs,
            size_t& to) {
    for (size_t i = 0; i < count(); ++i) parts_.emplace_back(inputs[at++], outputs[to++]);
  }

  // P Hkv page D, of codes as of words.
  const std::vector<int64_t>& shape() const { return parts_[0].shape(); }

  PageRows rows() const {
    PageRows found;
    found.kv = kv_;
    KeyValues::Part* places[] = {&found.kv.codes, &found.kv.scales, &found.kv.biases};
    char** data[] = {&found.codes, &found.scales, &found.biases};
    for (size_t i = 0; i < parts_.size(); ++i) {
      places[i]->data = *data[i] = parts_[i].numbers();
      const std::vector<int64_t>& shape = parts_[i].shape();
      int64_t stride = shape[3] * static_cast<int64_t>(parts_[i].itemsize());
      for (int axis = 2; axis >= 0; stride *= shape[axis--]) places[i]->strides[axis] = stride;
    }
    return found;
  }

 private:
  KeyValues kv_;
  std::vector<TakenOver> parts_;
};

class PagedAttentionBlock : public CpuPrimitives {
 public:
  PagedAttentionBlock(std::shared_ptr<AttentionWeights> block, const WeightArrays& keys,
                      const WeightArrays& values, int window)
      : block_(std::move(block)), keys_(keys), values_(values), window_(window) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    let_go(inputs, outputs);
    char* y = allocate(outputs[0]);
    PageArrays keys = keys_, values = values_;
    size_t at = 1, to = 1;
    keys.take(inputs, at, outputs, to);
    values.take(inputs, at, outputs, to);
    const auto where = inputs.begin() + at;
    dispatch(outputs, [&kernels = kernels_, x = Input(inputs[0]), keys = std::move(keys),
                       values = std::move(values), where = std::vector<Input>(where, where + 5),
                       block = AttentionWeightInputs(block_, inputs, at + 5), window = window_, y,
                       type = type_of(outputs[0].dtype())] {
      Copies copies;
      const auto integers = [&](size_t i) {
        return static_cast<const int32_t*>(placed(where[i], copies));
      };
      PagedAttentionBlockTask task{.inputs = block.task(copies)};
      task.inputs.x = placed(x, copies), task.inputs.type = type;
      task.inputs.batch = x.shape[0], task.inputs.length = x.shape[1];
      task.inputs.positions = integers(3), task.inputs.one_row = false;
      task.o = block.o(copies), task.o_bias = block.o_bias(copies);
      task.residual = block.residual(task.inputs.x);
      task.keys = keys.rows(), task.values = values.rows();
      task.block_table = integers(0), task.query_starts = integers(1);
      task.context_lengths = integers(2), task.slots = integers(4);
      task.requests = where[0].shape[0], task.blocks = where[0].shape[1];
      task.pages = keys.shape()[0], task.page = keys.shape()[2];
      task.window = window;
      task.scale = 1 / std::sqrt(static_cast<float>(task.inputs.dim));
      task.y = y;
      run(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::PagedAttentionBlock"; }

 private:
  std::shared_ptr<AttentionWeights> block_;
  PageArrays keys_, values_;
  int window_;
};

}  // namespace

std::vector<mx::array> paged_attention_block(const mx::array& x,
                                             std::shared_ptr<AttentionWeights> block,
                                             const WeightArrays& keys, const WeightArrays& values,
                                             const PagedTokensArrays& pages, int window) {
  std::vector<mx::array> inputs = {x};
  append(inputs, keys);
  append(inputs, values);
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const mx::array& each : inputs) {
    shapes.push_back(each.shape());
    dtypes.push_back(each.dtype());
  }
  inputs.insert(inputs.end(), {pages.block_table, pages.query_starts, pages.context_lengths,
                               pages.positions, pages.slots});
  inputs.insert(inputs.end(), block->arrays.begin(), block->arrays.end());
  auto primitive =
      std::make_shared<PagedAttentionBlock>(std::move(block), keys, values, window);
  return mx::array::make_arrays(shapes, dtypes, primitive, inputs);
}

}  // namespace tinyllm
