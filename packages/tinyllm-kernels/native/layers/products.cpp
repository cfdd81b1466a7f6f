#include "layers/products.h"

#include <algorithm>
#include <utility>

#include "runtime/parallel.h"
#include "runtime/product_order.h"

namespace tinyllm {
namespace {

LinearTask task_of(const Kernels& kernels, const Product& product) {
  Operand& x = *product.x;
  LinearTask task{.rows = x.rows(), .w = product.w, .bias = product.bias,
                  .residual = product.residual, .y = product.y, .type = x.type()};
  x.fill(task);
  kernels.linear_plan(task, ThreadPool::shared().threads());
  return task;
}

// The parts of several tasks, one after the other.
class Parts {
 public:
  void add(int64_t count) { ends_.push_back(count + total()); }

  int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }

  // Whose a part is, and which one of its own.
  std::pair<size_t, int64_t> operator[](int64_t part) const {
    const size_t task = std::upper_bound(ends_.begin(), ends_.end(), part) - ends_.begin();
    return {task, task ? part - ends_[task - 1] : part};
  }

 private:
  std::vector<int64_t> ends_;
};

// Both products of a pair, whose parts are the same rows.
struct GatedTask {
  LinearTask gate, up;

  bool are_cut_alike() const {
    return gate.part_rows == up.part_rows && gate.part_tokens == up.part_tokens;
  }
};

// Adds the weights of a part.
void add_part(const Kernels& kernels, const LinearTask& task, int64_t part, Upcoming& to) {
  const Weights& w = *task.w;
  const LinearRange range = kernels.linear_part_range(task, part);
  const auto add = [&](const void* data, int64_t row) {
    if (!data) return;
    to.add(static_cast<const char*>(data) + range.first_row * row,
           (range.last_row - range.first_row) * row);
  };
  const int64_t groups = w.group ? w.columns / w.group : 0;
  const int64_t of_group = w.mode == Mode::affine ? size_of(w.type) : 1;
  add(w.data, w.mode == Mode::dense ? w.columns * size_of(w.type) : int64_t{w.columns} * w.bits / 8);
  add(w.scales, groups * of_group);
  add(w.biases, groups * of_group);
}

void add_part(const Kernels& kernels, const GatedTask& task, int64_t part, Upcoming& to) {
  add_part(kernels, task.gate, part, to);
  add_part(kernels, task.up, part, to);
}

const LinearTask& first_of(const LinearTask& task) { return task; }
const LinearTask& first_of(const GatedTask& task) { return task.gate; }

// Computes all parts. With those of decoded tokens memory is what limits: threads that are done ask
// it for what comes next.
template <typename Task, typename Work>
void run_parts(const Kernels& kernels, const std::vector<Task>& tasks, const Parts& parts,
               Work work) {
  ThreadPool& pool = ThreadPool::shared();
  const auto first_reads = [&] {
    FirstReads reads(pool.threads());
    for (int thread = 0; thread < pool.threads(); ++thread) {
      Upcoming& upcoming = reads[thread];
      const int64_t end = pool.first_part(parts.total(), thread + 1);
      for (int64_t i = pool.first_part(parts.total(), thread); i < end && !upcoming.is_full(); ++i) {
        const auto [task, own] = parts[i];
        add_part(kernels, tasks[task], own, upcoming);
      }
    }
    return reads;
  };
  if (tasks.empty()) return;
  const LinearTask& first = first_of(tasks[0]);
  const FirstReads nothing;
  const FirstReads& next =
      first.phase == Phase::decode
          ? ProductOrder::of_this_thread().begin(first.w->data, parts.total(), first_reads)
          : nothing;
  pool.run(parts.total(), work, &next);
}

// The same where the matrices have two formats that are cut differently: one after the other.
void multiply_one_by_one(const Kernels& kernels, const GatedProduct& product) {
  multiply(kernels, {{product.x, product.gate, nullptr, nullptr, product.y},
                     {product.x, product.up, nullptr, nullptr, product.up_room}});
  const SwigluTask task{product.y, product.up_room, product.y, product.x->type()};
  in_chunks(product.x->rows() * product.gate->rows, 1, [&](int64_t first, int64_t last) {
    kernels.swiglu_range(task, first, last);
  });
}

}  // namespace

void Operand::fill(LinearTask& task) {
  const Weights& w = *task.w;
  task.phase = phase_;
  if (phase_ == Phase::prefill && kernels_.linear_uses_bfloat16(type_)) {
    task.x_packed = tiles();
    return;
  }
  task.x = floats();
  const bool in_integers = kernels_.linear_uses_integers(w, type_);
  if (in_integers || (phase_ == Phase::decode && w.mode == Mode::affine)) {
    const Grouped& forms = grouped(w, in_integers ? w.bits : 0);
    task.x_group_sums = forms.sums.get();
    task.x_integers = forms.planes.get(), task.x_scales = forms.scales.get();
  }
}

const uint32_t* Operand::tiles() {
  if (tiles_) return tiles_.get();
  const int64_t count = (rows_ + 31) / 32;
  tiles_ = aligned<uint32_t>(count * 32 * packed_pairs(columns_));
  in_chunks(count, 32 * columns_, [&](int64_t first, int64_t last) {
    kernels_.linear_pack_x(x_, rows_, columns_, first, last, tiles_.get());
  });
  return tiles_.get();
}

const float* Operand::floats() {
  if (type_ == Type::float32) return static_cast<const float*>(x_);
  if (floats_) return floats_.get();
  const int64_t count = rows_ * columns_;
  floats_ = aligned<float>(count);
  constexpr int64_t kChunk = 1 << 16;
  ThreadPool::shared().run((count + kChunk - 1) / kChunk, [&](int64_t part, int) {
    const int64_t at = part * kChunk;
    kernels_.to_floats(static_cast<const char*>(x_) + at * 2, type_, floats_.get() + at,
                       std::min(kChunk, count - at));
  });
  return floats_.get();
}

const Operand::Grouped& Operand::grouped(const Weights& w, int bits) {
  for (const Grouped& forms : grouped_) {
    if (forms.group == w.group && forms.bits == bits) return forms;
  }
  const int64_t groups = columns_ / w.group, columns = columns_;
  const float* x = floats();
  // Of a prompt whole tiles.
  const int64_t together = phase_ == Phase::prefill ? 32 : 1;
  const int64_t tiles = (rows_ + together - 1) / together, room = tiles * together;
  // Whole vectors are read of them, beyond the last one too.
  constexpr int64_t kBeyond = 16;
  Grouped forms{w.group, bits, aligned<float>(room * groups + kBeyond), nullptr, nullptr};
  if (bits) {
    forms.planes = aligned<int8_t>(2 * room * columns);
    forms.scales = aligned<float>(room * groups + kBeyond);
  }
  const QuantizedX planes{forms.planes.get(), forms.scales.get(), forms.sums.get()};
  in_chunks(tiles, together * columns, [&](int64_t first_tile, int64_t last_tile) {
    const int64_t first = first_tile * together, last = std::min(last_tile * together, rows_);
    if (bits) return kernels_.linear_quantize_x(x, phase_, w, first, last, planes);
    kernels_.group_sums(x + first * columns, (last - first) * groups, w.group,
                        planes.group_sums + first * groups);
  });
  return grouped_.emplace_back(std::move(forms));
}

void multiply(const Kernels& kernels, const std::vector<Product>& products) {
  std::vector<LinearTask> tasks;
  Parts parts;
  int64_t floats = 0;
  for (const Product& product : products) {
    tasks.push_back(task_of(kernels, product));
    floats = std::max(floats, kernels.linear_scratch(tasks.back()));
    parts.add(kernels.linear_part_count(tasks.back()));
  }
  Scratch scratch(floats);
  run_parts(kernels, tasks, parts, [&](int64_t part, int thread) {
    const auto [task, own] = parts[part];
    kernels.linear_part(tasks[task], own, scratch[thread]);
  });
}

void multiply_gated(const Kernels& kernels, const std::vector<GatedProduct>& products) {
  std::vector<GatedTask> tasks;
  Parts parts;
  int64_t floats = 0;
  for (const GatedProduct& product : products) {
    const GatedTask task{
        task_of(kernels, {product.x, product.gate, nullptr, nullptr, product.y}),
        task_of(kernels, {product.x, product.up, nullptr, nullptr, product.up_room})};
    if (!task.are_cut_alike()) {
      multiply_one_by_one(kernels, product);
      continue;
    }
    tasks.push_back(task);
    parts.add(kernels.linear_part_count(task.gate));
    floats = std::max({floats, kernels.linear_scratch(task.gate), kernels.linear_scratch(task.up)});
  }
  Scratch scratch(floats);
  run_parts(kernels, tasks, parts, [&](int64_t part, int thread) {
    const auto [task, own] = parts[part];
    const auto& [gate, up] = tasks[task];
    kernels.linear_part(gate, own, scratch[thread]);
    kernels.linear_part(up, own, scratch[thread]);
    const LinearRange range = kernels.linear_part_range(gate, own);
    const SwigluTask product{gate.y, up.y, gate.y, gate.type};
    for (int64_t m = range.first_token; m < range.last_token; ++m) {
      const int64_t row = m * gate.w->rows;
      kernels.swiglu_range(product, row + range.first_row, row + range.last_row);
    }
  });
}

}  // namespace tinyllm
