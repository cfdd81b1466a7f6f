#include "product.h"

#include <algorithm>

#include "in_chunks.h"
#include "scratch.h"

namespace tinyllm {
namespace {

LinearTask task_of(const Kernels& kernels, Operand& x, const Product& product) {
  LinearTask task{.rows = x.rows(), .w = product.w, .bias = product.bias,
                  .residual = product.residual, .y = product.y, .type = x.type()};
  x.fill(task);
  kernels.linear_plan(task, ThreadPool::shared().threads());
  return task;
}

}  // namespace

void Operand::fill(LinearTask& task) {
  const Weights& w = *task.w;
  task.tokens = tokens_;
  if (tokens_ == Tokens::prompt && kernels_.linear_takes_tiles(type_)) {
    task.tiles = tiles();
    return;
  }
  task.x = floats();
  const bool in_integers = kernels_.linear_takes_planes(w, type_, tokens_);
  if (in_integers || (tokens_ == Tokens::decoded && w.mode == Mode::affine)) {
    const Grouped& forms = grouped(w, in_integers ? w.bits : 0);
    task.sums = forms.sums.get();
    task.planes = forms.planes.get(), task.plane_scales = forms.scales.get();
  }
}

const uint32_t* Operand::tiles() {
  if (tiles_) return tiles_.get();
  const int64_t count = (rows_ + 31) / 32;
  tiles_ = aligned<uint32_t>(count * 32 * packed_pairs(columns_));
  in_chunks(count, 32 * columns_, [&](int64_t first, int64_t last) {
    kernels_.linear_tiles(x_, rows_, columns_, first, last, tiles_.get());
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
  // Whole vectors are read of them, beyond the last one too.
  constexpr int64_t kBeyond = 16;
  Grouped forms{w.group, bits, aligned<float>(rows_ * groups + kBeyond), nullptr, nullptr};
  if (bits) {
    forms.planes = aligned<int8_t>(2 * rows_ * columns);
    forms.scales = aligned<float>(rows_ * groups + kBeyond);
  }
  in_chunks(rows_, columns, [&](int64_t first, int64_t last) {
    const int64_t count = last - first, at = first * groups;
    kernels_.group_sums(x + first * columns, count * groups, w.group, forms.sums.get() + at);
    if (!bits) return;
    kernels_.linear_planes(x + first * columns, count * columns, w,
                           forms.planes.get() + 2 * first * columns, forms.scales.get() + at);
  });
  return grouped_.emplace_back(std::move(forms));
}

void multiply(const Kernels& kernels, Operand& x, std::initializer_list<Product> products) {
  std::vector<LinearTask> tasks;
  std::vector<int64_t> ends;  // parts of the tasks so far
  int64_t floats = 0;
  for (const Product& product : products) {
    tasks.push_back(task_of(kernels, x, product));
    floats = std::max(floats, kernels.linear_scratch(tasks.back()));
    ends.push_back((ends.empty() ? 0 : ends.back()) + kernels.linear_parts(tasks.back()));
  }
  Scratch scratch(floats);
  ThreadPool::shared().run(ends.back(), [&](int64_t part, int thread) {
    size_t i = 0;
    while (part >= ends[i]) ++i;
    kernels.linear_part(tasks[i], i ? part - ends[i - 1] : part, scratch[thread]);
  });
}

void multiply_gated(const Kernels& kernels, Operand& x, const Weights& gate, const Weights& up,
                    void* up_room, void* y) {
  LinearTask gated = task_of(kernels, x, {&gate, nullptr, nullptr, y});
  LinearTask upped = task_of(kernels, x, {&up, nullptr, nullptr, up_room});
  if (gated.part_rows != upped.part_rows || gated.part_tokens != upped.part_tokens) {
    // Two formats that are cut differently: one after the other.
    multiply(kernels, x, {{&gate, nullptr, nullptr, y}, {&up, nullptr, nullptr, up_room}});
    const SwigluTask task{y, up_room, y, x.type()};
    return in_chunks(x.rows() * gate.rows, 1, [&](int64_t first, int64_t last) {
      kernels.swiglu_range(task, first, last);
    });
  }
  Scratch scratch(std::max(kernels.linear_scratch(gated), kernels.linear_scratch(upped)));
  ThreadPool::shared().run(kernels.linear_parts(gated), [&](int64_t part, int thread) {
    kernels.linear_part(gated, part, scratch[thread]);
    kernels.linear_part(upped, part, scratch[thread]);
    const LinearRange range = kernels.linear_range(gated, part);
    const SwigluTask task{y, up_room, y, x.type()};
    for (int64_t m = range.first_token; m < range.last_token; ++m) {
      kernels.swiglu_range(task, m * gate.rows + range.first_row, m * gate.rows + range.last_row);
    }
  });
}

}  // namespace tinyllm
