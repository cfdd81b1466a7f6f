// Layers with keys and values in pages as a primitive of MLX.

#include "mlx/loan.h"
#include "mlx/operations/group_states.h"
#include "mlx/operations/layer_loop.h"
#include "mlx/operations.h"
#include "mlx/operations/primitive.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

// Arrays of the keys, or values, of a layer: one, or codes, scales and biases.
size_t num_arrays(const PageFormat& format) { return format.bits ? 3 : 1; }

// Returns the pages of a layer's keys, or values, which have the memory `arrays`.
WritablePages pages_of(const PageFormat& format, Type type, const DonatedInput* arrays) {
  WritablePages pages;
  pages.kv.mode = format.bits ? Mode::affine : Mode::dense;
  pages.kv.type = type;
  pages.kv.bits = format.bits;
  pages.kv.group = format.group_size;
  KeyValues::StridedRows* readable[] = {&pages.kv.codes, &pages.kv.scales, &pages.kv.biases};
  char** writable[] = {&pages.codes, &pages.scales, &pages.biases};
  for (size_t i = 0; i < num_arrays(format); ++i) {
    char* data = arrays[i].content();
    readable[i]->data = data;
    *writable[i] = data;
    const std::vector<int64_t>& shape = arrays[i].shape();
    int64_t stride = shape[3] * static_cast<int64_t>(arrays[i].itemsize());
    for (int axis = 2; axis >= 0; --axis) {
      readable[i]->strides[axis] = stride;
      stride *= shape[axis];
    }
  }
  return pages;
}

class PagedLayers : public CpuPrimitives {
 public:
  // The caches are inputs and outputs, or lent.
  PagedLayers(LayerGroup layers, std::vector<int> table_of_layer, std::shared_ptr<LentArrays> lent,
              const PageFormat& format, int window, OptionalPhase phase, bool without_tokens)
      : layers_(std::move(layers)),
        table_of_layer_(std::move(table_of_layer)),
        lent_(std::move(lent)),
        format_(format),
        window_(window),
        phase_(phase),
        without_tokens_(without_tokens) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    release_inputs(inputs, outputs);
    char* y = allocate(outputs[0]);
    const Type type = type_of(outputs[0].dtype());
    const size_t count = outputs.size() - 1 - 2 * table_of_layer_.size();
    CacheMemory caches = lent_ ? lent_->memory(inputs, without_tokens_)
                               : donate(inputs, outputs, count, without_tokens_);
    GroupStateInputs states(table_of_layer_, inputs, outputs);
    // The arrays of the page table are the last inputs, except for those of state tables.
    const auto table = lent_ ? inputs.end() - 5 : inputs.begin() + outputs.size();
    dispatch(outputs, [&kernels = kernels_, layers = layers_, x = Input(inputs[0]), lent = lent_,
                       caches = std::move(caches), states = std::move(states),
                       cache_index = cache_indices(*layers_),
                       table = std::vector<Input>(table, table + 5), format = format_,
                       window = window_, phase = phase_, y, type] {
      Copies copies;
      const auto integers = [&](size_t i) {
        return static_cast<const int32_t*>(contiguous_data(table[i], copies));
      };
      const int32_t *block_tables = integers(0), *cu_seqlens_q = integers(1);
      const int32_t *seq_lens = integers(2), *positions = integers(3), *slot_mapping = integers(4);
      RopeTable rope_table;
      const auto attend = [&](size_t i, const void* rows, char* to) {
        const LayerHandle& layer = (*layers)[i];
        if (layer.delta_net) {
          return states.run(kernels, *layer.delta_net, cache_index[i],
                            rows_of(x, rows, type, phase), to, copies);
        }
        auto task = layer.attention->task<PagedAttentionLayerTask>(x, rows, type, phase);
        task.projection.positions = {positions, table[3].size, false};
        task.projection.rope_table = &rope_table;
        task.block_tables = block_tables;
        task.cu_seqlens_q = cu_seqlens_q;
        task.seq_lens = seq_lens;
        task.slot_mapping = slot_mapping;
        task.requests = table[0].shape[0];
        task.block_table_width = table[0].shape[1];
        task.window = window;
        task.decode_queries = decode_queries(phase);
        const DonatedInput* keys = &(*caches)[2 * cache_index[i] * num_arrays(format)];
        task.keys = pages_of(format, type, keys);
        task.values = pages_of(format, type, keys + num_arrays(format));
        task.pages = keys->shape()[0];
        task.page_size = keys->shape()[2];
        task.y = to;
        run_paged_attention_layer(kernels, task);
      };
      run_layers(kernels, *layers, x, contiguous_data(x, copies), type, phase, y, attend);
    });
  }

  const char* name() const override { return "tinyllm::PagedLayers"; }

 private:
  LayerGroup layers_;
  std::vector<int> table_of_layer_;
  std::shared_ptr<LentArrays> lent_;  // or null
  PageFormat format_;
  int window_;
  OptionalPhase phase_;
  bool without_tokens_;
};

// Throws std::invalid_argument unless there is one slot a token and one length a request.
void check_pages(const mx::array& x, const PageTableArrays& pages) {
  require(x.ndim() == 3, "x: expected the shape B L E");
  for (const mx::array* each : {&pages.block_tables, &pages.cu_seqlens_q, &pages.seq_lens,
                                &pages.positions, &pages.slot_mapping}) {
    require(each->dtype() == mx::int32, "pages: expected arrays of int32");
  }
  const size_t tokens = static_cast<size_t>(x.shape(0)) * x.shape(1);
  require(pages.positions.size() == tokens && pages.slot_mapping.size() == tokens,
          "positions, slot_mapping: expected one number per token");
  require(pages.block_tables.ndim() == 2, "block_tables: expected the shape R blocks");
  const size_t requests = pages.block_tables.shape(0);
  require(pages.cu_seqlens_q.size() == requests + 1 && pages.seq_lens.size() == requests,
          "cu_seqlens_q, seq_lens: expected R+1 and R numbers");
}

// Throws std::invalid_argument unless `arrays`, the keys or values of a layer, fit its weights and
// have the pages of `like`.
void check_cache(const mx::array& x, const ProjectTask& projection, const mx::array& like,
                 const mx::array* arrays, const PageFormat& format) {
  require(x.shape(2) == projection.q.columns, "x: expected the shape B L E of the weights");
  const auto fits = [&](const mx::array& array, int64_t width) {
    return array.ndim() == 4 && array.shape(0) == like.shape(0) &&
           array.shape(1) == projection.kv_heads && array.shape(2) == like.shape(2) &&
           array.shape(3) == width;
  };
  const char* const shape = "caches: expected the shape P Hkv page D, with equal P and page";
  if (!format.bits) {
    require(fits(arrays[0], projection.dim), shape);
    require(arrays[0].dtype() == x.dtype(), "caches: expected the dtype of x");
    return;
  }
  const int64_t groups = projection.dim / format.group_size;
  require(fits(arrays[0], projection.dim * format.bits / 32) && fits(arrays[1], groups) &&
              fits(arrays[2], groups),
          shape);
  require(arrays[0].dtype() == mx::uint32 && arrays[1].dtype() == x.dtype() &&
              arrays[2].dtype() == x.dtype(),
          "caches: expected codes of uint32, and scales and biases of the dtype of x");
}

// Checks the keys and values of all attention layers.
void check_caches(const mx::array& x, const std::vector<LayerHandle>& layers,
                  const std::vector<mx::array>& arrays, const PageFormat& format) {
  const size_t count = num_arrays(format);
  size_t next = 0;
  for (const LayerHandle& layer : layers) {
    if (!layer.attention) continue;
    for (const size_t end = next + 2 * count; next < end; next += count) {
      check_cache(x, layer.attention->projection(), arrays[0], &arrays[next], format);
    }
  }
}

}  // namespace

std::vector<mx::array> paged_layers(const mx::array& x, LayerGroup layers,
                                    const std::vector<mx::array>& caches,
                                    const GroupStateArrays& states, const PageFormat& format,
                                    const PageTableArrays& pages, int window, OptionalPhase phase,
                                    bool without_tokens) {
  check_pages(x, pages);
  check_states(x, *layers, states);
  const size_t count = num_arrays(format);
  require(caches.size() == 2 * count * (layers->size() - states.table_of_layer.size()),
          "caches: expected keys and values of each attention layer");
  check_caches(x, *layers, caches, format);
  std::vector<mx::array> inputs = {x};
  inputs.insert(inputs.end(), caches.begin(), caches.end());
  inputs.insert(inputs.end(), states.arrays.begin(), states.arrays.end());
  const size_t num_outputs = inputs.size();
  inputs.insert(inputs.end(), {pages.block_tables, pages.cu_seqlens_q, pages.seq_lens,
                               pages.positions, pages.slot_mapping});
  for (const StateTableArrays& table : states.tables) {
    inputs.insert(inputs.end(), {table.cu_seqlens, table.load_slots, table.save_slots});
  }
  return same_shapes(inputs, num_outputs,
                     std::make_shared<PagedLayers>(std::move(layers), states.table_of_layer,
                                                   nullptr, format, window, phase, without_tokens));
}

mx::array paged_layers(const mx::array& x, LayerGroup layers, Loan& loan, const PageFormat& format,
                       const PageTableArrays& pages, int window, OptionalPhase phase,
                       bool without_tokens) {
  check_pages(x, pages);
  const std::vector<mx::array>& arrays = loan.lent()->arrays();
  require(loan.belongs_to(layers) && arrays.size() == 2 * num_arrays(format) * layers->size(),
          "loan: expected keys and values of each layer");
  if (loan.is_new()) check_caches(x, *layers, arrays, format);
  const std::vector<mx::array> table = {pages.block_tables, pages.cu_seqlens_q, pages.seq_lens,
                                        pages.positions, pages.slot_mapping};
  return loan.next(x, table,
                   std::make_shared<PagedLayers>(std::move(layers), std::vector<int>{}, loan.lent(),
                                                 format, window, phase, without_tokens));
}

}  // namespace tinyllm
