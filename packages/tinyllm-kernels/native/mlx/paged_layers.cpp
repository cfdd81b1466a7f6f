// Blocks over keys and values in pages as a primitive of MLX.

#include <cmath>

#include "layers/attention.h"
#include "mlx/primitive.h"
#include "mlx/operations.h"
#include "mlx/ping_pong_buffer.h"
#include "mlx/donation.h"
#include "mlx/weight_inputs.h"

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
    KeyValues::StridedRows* places[] = {&found.kv.codes, &found.kv.scales, &found.kv.biases};
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

class PagedBlocks : public CpuPrimitives {
 public:
  PagedBlocks(std::vector<BlockWeights> blocks, const std::vector<WeightArrays>& stores, int window,
              OptionalPhase phase)
      : blocks_(std::move(blocks)),
        stores_(stores.begin(), stores.end()),
        window_(window),
        phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    let_go(inputs, outputs);
    char* y = allocate(outputs[0]);
    std::vector<PageArrays> stores = stores_;
    size_t at = 1, to = 1;
    for (PageArrays& store : stores) store.take(inputs, at, outputs, to);
    const auto where = inputs.begin() + at;
    dispatch(outputs, [&kernels = kernels_, blocks = blocks_, x = Input(inputs[0]),
                       stores = std::move(stores), where = std::vector<Input>(where, inputs.end()),
                       window = window_, phase = phase_, y,
                       type = type_of(outputs[0].dtype())] {
      Copies copies;
      const auto integers = [&](size_t i) {
        return static_cast<const int32_t*>(placed(where[i], copies));
      };
      PagedAttentionBlockTask task{};
      task.block_table = integers(0), task.query_starts = integers(1);
      task.context_lengths = integers(2), task.slots = integers(4);
      task.requests = where[0].shape[0], task.blocks = where[0].shape[1];
      task.window = window, task.decode_queries = decode_queries(phase);
      const int32_t* positions = integers(3);
      const void* row = placed(x, copies);
      Relay relay(blocks, x.size * size_of(type), y);
      for (size_t i = 0; i < blocks.size(); ++i) {
        const AttentionWeights& told = *blocks[i].attention;
        task.inputs = told.inputs();
        task.inputs.x = row, task.inputs.type = type;
        task.inputs.batch = x.shape[0], task.inputs.length = x.shape[1];
        task.inputs.phase = phase_of(x, phase);
        task.inputs.positions = positions, task.inputs.one_row = false;
        task.o = told.o(), task.o_bias = told.o_bias();
        task.residual = told.residual() ? row : nullptr;
        task.keys = stores[2 * i].rows(), task.values = stores[2 * i + 1].rows();
        task.pages = stores[2 * i].shape()[0], task.page = stores[2 * i].shape()[2];
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

  const char* name() const override { return "tinyllm::PagedBlocks"; }

 private:
  std::vector<BlockWeights> blocks_;
  std::vector<PageArrays> stores_;
  int window_;
  OptionalPhase phase_;
};

// Throws std::invalid_argument unless there is one slot a token, and one length a request.
void check_pages(const mx::array& x, const PagedTokensArrays& pages) {
  require(x.ndim() == 3, "x: expected the shape B L E");
  for (const mx::array* each : {&pages.block_table, &pages.query_starts, &pages.context_lengths,
                                &pages.positions, &pages.slots}) {
    require(each->dtype() == mx::int32, "pages: expected arrays of int32");
  }
  const size_t tokens = static_cast<size_t>(x.shape(0)) * x.shape(1);
  require(pages.positions.size() == tokens && pages.slots.size() == tokens,
          "positions, slots: expected one a token");
  require(pages.block_table.ndim() == 2, "block_table: expected the shape R blocks");
  const size_t requests = pages.block_table.shape(0);
  require(pages.query_starts.size() == requests + 1 && pages.context_lengths.size() == requests,
          "query_starts, context_lengths: expected R+1 and R numbers");
}

// Throws std::invalid_argument unless keys or values, of as many pages as `like`, fit the block.
void check_store(const mx::array& x, const AttentionInputsTask& block, const mx::array& like,
                 const WeightArrays& store) {
  require(x.shape(2) == block.q.columns, "x: expected the shape B L E of the weights");
  const auto fits = [&](const std::optional<mx::array>& part, int64_t width) {
    return part && part->ndim() == 4 && part->shape(0) == like.shape(0) &&
           part->shape(1) == block.kv_heads && part->shape(2) == like.shape(2) &&
           part->shape(3) == width;
  };
  const bool dense = !store.scales;
  const int64_t groups = dense ? 0 : block.dim / store.group_size;
  require(fits(store.w, dense ? block.dim : block.dim * store.bits / 32) &&
              (dense || (fits(store.scales, groups) && fits(store.biases, groups))),
          "stores: expected the shape P Hkv page D");
  require((dense ? store.w : *store.scales).dtype() == x.dtype(), "stores: expected the dtype of x");
}

}  // namespace

std::vector<mx::array> paged_blocks(const mx::array& x, std::vector<BlockWeights> blocks,
                                    const std::vector<WeightArrays>& stores,
                                    const PagedTokensArrays& pages, int window,
                                    OptionalPhase phase) {
  check_pages(x, pages);
  require(stores.size() == 2 * blocks.size(), "stores: expected keys and values of each block");
  for (size_t i = 0; i < stores.size(); ++i) {
    check_store(x, blocks[i / 2].attention->inputs(), stores[i / 2 * 2].w, stores[i]);
  }
  std::vector<mx::array> inputs = {x};
  for (const WeightArrays& store : stores) append(inputs, store);
  const size_t outputs = inputs.size();
  inputs.insert(inputs.end(), {pages.block_table, pages.query_starts, pages.context_lengths,
                               pages.positions, pages.slots});
  return same_shapes(inputs, outputs,
                     std::make_shared<PagedBlocks>(std::move(blocks), stores, window, phase));
}

}  // namespace tinyllm
