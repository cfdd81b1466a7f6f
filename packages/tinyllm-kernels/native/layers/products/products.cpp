#include "layers/products/products.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "ceil_div.h"
#include "runtime/parallel.h"
#include "runtime/product_order.h"

namespace tinyllm {
namespace {

// The parts of a product with w, if all products of its task have `rows` rows of w together. Parts
// of different products have about as many rows, so that all threads begin with as much work.
int64_t wanted_parts(const Weights& w, int64_t rows) {
  const int64_t parts = kPartsPerThread * ThreadPool::shared().threads();
  return ceil_div(parts * w.rows, rows);
}

LinearTask task_of(const KernelTable& kernels, const Product& product, int64_t parts) {
  Operand& x = *product.x;
  LinearTask task{.tokens = x.rows(),
                  .w = product.w,
                  .bias = product.bias,
                  .residual = product.residual,
                  .y = product.y,
                  .y_stride = product.y_stride ? product.y_stride : product.w->rows,
                  .type = x.type()};
  x.set_x(task);
  kernels.linear_plan(task, parts);
  return task;
}

// Numbers the parts of several tasks consecutively.
class Parts {
 public:
  void add(int64_t count) { ends_.push_back(count + total()); }

  int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }

  // Returns the task of a part and the number of the part within that task.
  std::pair<size_t, int64_t> operator[](int64_t part) const {
    const size_t task = std::upper_bound(ends_.begin(), ends_.end(), part) - ends_.begin();
    return {task, task ? part - ends_[task - 1] : part};
  }

 private:
  std::vector<int64_t> ends_;
};

// The two products of a gated product. If the kernel computes both together, `gate` has both.
struct GatedTask {
  LinearTask gate, up;

  bool is_fused() const { return gate.up; }

  // True if both products have the same parts, so that one thread can compute both of a part.
  bool have_equal_parts() const {
    return gate.part_rows == up.part_rows && gate.part_tokens == up.part_tokens;
  }
};

bool have_equal_formats(const Weights& a, const Weights& b) {
  return a.mode == b.mode && a.bits == b.bits && a.group == b.group && a.type == b.type &&
         a.interleaved == b.interleaved;
}

// Appends the memory of the weights that a part reads.
void add_weights(const KernelTable& kernels, const LinearTask& task, int64_t part,
                 PrefetchList& to) {
  const Weights& w = *task.w;
  const LinearRange range = kernels.linear_part_range(task, part);
  const auto add_rows = [&](const void* data, int64_t bytes) {
    if (!data) return;
    to.add(static_cast<const char*>(data) + range.first_row * bytes,
           (range.last_row - range.first_row) * bytes);
  };
  const int64_t groups = w.group ? w.columns / w.group : 0;
  const int64_t scale_bytes = w.mode == Mode::affine ? size_of(w.type) : 1;
  add_rows(w.data, row_bytes(w));
  add_rows(w.scales, groups * scale_bytes);
  add_rows(w.biases, groups * scale_bytes);
}

void add_weights(const KernelTable& kernels, const GatedTask& task, int64_t part,
                 PrefetchList& to) {
  add_weights(kernels, task.gate, part, to);
  add_weights(kernels, task.up, part, to);
}

const LinearTask& first_of(const LinearTask& task) { return task; }
const LinearTask& first_of(const GatedTask& task) { return task.gate; }

// Computes all parts. Decoding is limited by memory bandwidth: a thread that has finished
// prefetches the weights of the predicted next product.
template <typename Task, typename Work>
void run_parts(const KernelTable& kernels, const std::vector<Task>& tasks, const Parts& parts,
               Work work) {
  ThreadPool& pool = ThreadPool::shared();
  const auto prefetch_lists = [&] {
    PrefetchLists lists(pool.threads());
    for (int thread = 0; thread < pool.threads(); ++thread) {
      PrefetchList& list = lists[thread];
      const int64_t end = pool.first_part(parts.total(), thread + 1);
      for (int64_t i = pool.first_part(parts.total(), thread); i < end && !list.is_full(); ++i) {
        const auto [task, part] = parts[i];
        add_weights(kernels, tasks[task], part, list);
      }
    }
    return lists;
  };
  if (tasks.empty()) return;
  const LinearTask& first = first_of(tasks[0]);
  const PrefetchLists none;
  const PrefetchLists& next =
      first.phase == Phase::decode
          ? ProductOrder::of_this_thread().begin(first.w->data, parts.total(), prefetch_lists)
          : none;
  pool.run(parts.total(), work, &next);
}

// Counts the columns of each column group and range of tokens that are not computed yet.
class EpilogueCounters {
 public:
  EpilogueCounters(const Epilogue& epilogue, const LinearTask& task)
      : epilogue_(epilogue),
        groups_per_row_(task.w->rows / epilogue.width),
        part_tokens_(task.part_tokens),
        columns_left_(ceil_div(task.tokens, part_tokens_) * groups_per_row_) {
    for (std::atomic<int64_t>& left : columns_left_) left.store(epilogue.width);
  }

  // Applies the epilogue to the column groups that are complete with this part.
  void add(const LinearRange& part) {
    const int64_t width = epilogue_.width;
    for (int64_t n = part.first_row; n < part.last_row;) {
      const int64_t group = n / width, end = std::min(part.last_row, (group + 1) * width);
      std::atomic<int64_t>& left =
          columns_left_[part.first_token / part_tokens_ * groups_per_row_ + group];
      // The thread that subtracts the last columns sees the results of the others.
      if (left.fetch_sub(end - n, std::memory_order_acq_rel) == end - n) {
        epilogue_.apply(group, part.first_token, part.last_token);
      }
      n = end;
    }
  }

 private:
  const Epilogue& epilogue_;
  int64_t groups_per_row_, part_tokens_;
  std::vector<std::atomic<int64_t>> columns_left_;
};

// Computes a gated product whose two matrices have different parts, for example because their
// formats differ.
void multiply_separately(const KernelTable& kernels, const GatedProduct& product) {
  const int64_t width = product.gate->rows, stride = product.y_stride ? product.y_stride : width;
  multiply(kernels, {{product.x, product.gate, nullptr, nullptr, product.y, stride},
                     {product.x, product.up, nullptr, nullptr, product.up_scratch, stride}});
  const SwigluTask task{product.y, product.up_scratch, product.y, product.x->type()};
  parallel_for(product.x->rows(), width, [&](int64_t first, int64_t last) {
    for (int64_t m = first; m < last; ++m) {
      kernels.swiglu_range(task, m * stride, m * stride + width);
    }
  });
}

}  // namespace

void multiply(const KernelTable& kernels, const std::vector<Product>& products) {
  std::vector<LinearTask> tasks;
  std::vector<std::unique_ptr<EpilogueCounters>> counters;
  Parts parts;
  int64_t floats = 0, rows = 0;
  for (const Product& product : products) rows += product.w->rows;
  for (const Product& product : products) {
    tasks.push_back(task_of(kernels, product, wanted_parts(*product.w, rows)));
    counters.push_back(product.epilogue
                           ? std::make_unique<EpilogueCounters>(*product.epilogue, tasks.back())
                           : nullptr);
    floats = std::max(floats, kernels.linear_scratch(tasks.back()));
    parts.add(kernels.linear_part_count(tasks.back()));
  }
  Scratch scratch(floats);
  run_parts(kernels, tasks, parts, [&](int64_t part, int thread) {
    const auto [task, part_of_task] = parts[part];
    kernels.linear_part(tasks[task], part_of_task, scratch[thread]);
    if (counters[task]) counters[task]->add(kernels.linear_part_range(tasks[task], part_of_task));
  });
}

void multiply_gated(const KernelTable& kernels, const std::vector<GatedProduct>& products) {
  std::vector<GatedTask> tasks;
  Parts parts;
  int64_t floats = 0, rows = 0;
  for (const GatedProduct& product : products) rows += product.gate->rows;
  for (const GatedProduct& product : products) {
    const Product gate{product.x, product.gate, nullptr, nullptr, product.y, product.y_stride};
    const Product up{product.x, product.up, nullptr, nullptr, product.up_scratch, product.y_stride};
    const int64_t wanted = wanted_parts(*gate.w, rows);
    GatedTask task{task_of(kernels, gate, wanted), task_of(kernels, up, wanted)};
    if (task.gate.kernel == LinearKernel::bfloat16_amx &&
        have_equal_formats(*product.gate, *product.up)) {
      task.gate.up = product.up;
      kernels.linear_plan(task.gate, wanted);
    } else if (!task.have_equal_parts()) {
      multiply_separately(kernels, product);
      continue;
    }
    tasks.push_back(task);
    parts.add(kernels.linear_part_count(task.gate));
    floats = std::max({floats, kernels.linear_scratch(task.gate), kernels.linear_scratch(task.up)});
  }
  Scratch scratch(floats);
  run_parts(kernels, tasks, parts, [&](int64_t part, int thread) {
    const auto [task, part_of_task] = parts[part];
    const auto& [gate, up] = tasks[task];
    kernels.linear_part(gate, part_of_task, scratch[thread]);
    if (tasks[task].is_fused()) return;
    kernels.linear_part(up, part_of_task, scratch[thread]);
    const LinearRange range = kernels.linear_part_range(gate, part_of_task);
    const SwigluTask product{gate.y, up.y, gate.y, gate.type};
    for (int64_t m = range.first_token; m < range.last_token; ++m) {
      const int64_t row = m * gate.y_stride;
      kernels.swiglu_range(product, row + range.first_row, row + range.last_row);
    }
  });
}

}  // namespace tinyllm
