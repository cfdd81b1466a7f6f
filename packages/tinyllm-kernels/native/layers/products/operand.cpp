#include "layers/products/operand.h"

#include <algorithm>
#include <utility>

#include "ceil_div.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

// Columns that a product instruction of a matrix unit multiplies.
constexpr int64_t kStepColumns = 32;

}  // namespace

void Operand::set_x(LinearTask& task) {
  const Weights& w = *task.w;
  task.phase = phase_;
  task.kernel = kernels_.linear_kernel(w, type_, phase_, rows_);
  switch (task.kernel) {
    case LinearKernel::float_gemv:
      task.x = floats();
      if (w.mode == Mode::affine) task.x_group_sums = group_sums(w.group);
      return;
    case LinearKernel::float_gemm:
    case LinearKernel::bfloat16_gemv:
    case LinearKernel::bfloat16_gemm:
      task.x_packed = packed();
      return;
    case LinearKernel::mxfp8_gemv:
    case LinearKernel::bfloat16_amx:
      return set_unpacked_x(task);
    default:
      const Quantized& x = quantized(task.kernel, w);
      task.x_group_sums = x.sums.get();
      task.x_integers = x.integers.get();
      task.x_scales = x.scales.get();
  }
}

// Rows that end within a step of columns are copied, with zeros behind them.
void Operand::set_unpacked_x(LinearTask& task) {
  task.x_unpacked = static_cast<const BFloat16*>(x_);
  task.x_stride = stride_;
  if (columns_ % kStepColumns == 0) return;
  const int64_t stride = round_up(columns_, kStepColumns);
  if (!padded_) {
    padded_ = aligned<BFloat16>(rows_ * stride);
    for (int64_t row = 0; row < rows_; ++row) {
      BFloat16* to = padded_.get() + row * stride;
      std::copy_n(task.x_unpacked + row * stride_, columns_, to);
      std::fill(to + columns_, to + stride, BFloat16{0});
    }
  }
  task.x_unpacked = padded_.get();
  task.x_stride = stride;
}

const uint32_t* Operand::packed() {
  if (packed_) return packed_.get();
  const int64_t count = ceil_div(rows_, kTokenTile);
  packed_ = aligned<uint32_t>(count * kTokenTile * kernels_.linear_packed_words(type_, columns_));
  parallel_for(count, kTokenTile * columns_, [&](int64_t first, int64_t last) {
    kernels_.linear_pack_x(x_, type_, rows_, columns_, first, last, packed_.get());
  });
  return packed_.get();
}

const float* Operand::floats() {
  if (type_ == Type::float32) return static_cast<const float*>(x_);
  if (floats_) return floats_.get();
  const int64_t count = rows_ * columns_;
  floats_ = aligned<float>(count);
  constexpr int64_t kChunk = 1 << 16;  // numbers
  ThreadPool::shared().run(ceil_div(count, kChunk), [&](int64_t part, int) {
    const int64_t first = part * kChunk;
    const char* from = static_cast<const char*>(x_) + first * size_of(type_);
    kernels_.to_floats(from, type_, floats_.get() + first, std::min(kChunk, count - first));
  });
  return floats_.get();
}

const float* Operand::group_sums(int group) {
  for (const GroupSums& known : group_sums_) {
    if (known.group == group) return known.sums.get();
  }
  const int64_t columns = columns_, groups = columns_ / group;
  GroupSums made{group, aligned<float>(rows_ * groups)};
  const float* x = floats();
  parallel_for(rows_, columns, [&](int64_t first, int64_t last) {
    kernels_.group_sums(x + first * columns, (last - first) * groups, group,
                        made.sums.get() + first * groups);
  });
  return group_sums_.emplace_back(std::move(made)).sums.get();
}

const Operand::Quantized& Operand::quantized(LinearKernel kernel, const Weights& w) {
  for (const Quantized& known : quantized_) {
    if (known.kernel == kernel && known.group == w.group && known.bits == w.bits) return known;
  }
  const int64_t columns = columns_, groups = columns_ / w.group;
  const int64_t rows_per_tile = phase_ == Phase::prefill ? kTokenTile : 1;
  const int64_t tiles = ceil_div(rows_, rows_per_tile);
  Quantized made{kernel,
                 w.group,
                 w.bits,
                 aligned<float>(rows_ * groups),
                 aligned<float>(rows_ * groups),
                 aligned<int8_t>(2 * rows_ * columns)};
  const QuantizedX to_all{made.integers.get(), made.scales.get(), made.sums.get(), rows_};
  // To quantize a number takes some four times as long as to read it.
  constexpr int64_t kCost = 4;
  const bool converts = type_ != Type::float32;
  if (phase_ == Phase::prefill && tiles > 1) {
    Scratch buffers(converts ? rows_per_tile * columns : 0);
    parallel_for(tiles, kCost * rows_per_tile * columns, [&](int64_t from, int64_t to, int thread) {
      for (int64_t tile = from; tile < to; ++tile) {
        const int64_t first = tile * rows_per_tile, last = std::min(first + rows_per_tile, rows_);
        quantize(kernel, w, {nullptr, 0, first, last, 0, groups}, buffers[thread], to_all);
      }
    });
  } else {
    // Threads that quantize different rows would write to the same cache lines: scales of all rows
    // of a group may be side by side. A single tile has work for several threads in its groups
    // alone.
    const int64_t chunk = std::max<int64_t>(kMinNumbersPerChunk / kCost, rows_ * w.group);
    Scratch buffers(converts ? chunk : 0);
    parallel_for(groups, kCost * rows_ * w.group, [&](int64_t first, int64_t last, int thread) {
      quantize(kernel, w, {nullptr, 0, 0, rows_, first, last}, buffers[thread], to_all);
    });
  }
  return quantized_.emplace_back(std::move(made));
}

// Quantizes a range of x, whose numbers are in `buffer` if they have 16 bits.
void Operand::quantize(LinearKernel kernel, const Weights& w, XRange range, float* buffer,
                       const QuantizedX& to) {
  const int64_t first_column = range.first_group * w.group;
  const int64_t width = (range.last_group - range.first_group) * w.group;
  const auto row_of_x = [&](int64_t row) {
    return static_cast<const char*>(x_) + (row * columns_ + first_column) * size_of(type_);
  };
  range.x = reinterpret_cast<const float*>(row_of_x(range.first_token));
  range.stride = columns_;
  if (type_ != Type::float32) {
    for (int64_t row = range.first_token; row < range.last_token; ++row) {
      kernels_.to_floats(row_of_x(row), type_, buffer + (row - range.first_token) * width, width);
    }
    range.x = buffer, range.stride = width;
  }
  kernels_.linear_quantize_x(kernel, range, w, to);
}

// A processor's caches keep few lines whose addresses differ by a multiple of 2 KB. So rows that
// would be a multiple of 1 KB apart get 64 bytes more if several rows are read together.
int64_t row_stride(const KernelTable& kernels, Type type, Phase phase, int64_t columns) {
  constexpr int64_t kPadding = 32, kConflict = 512;  // numbers of 16 bits
  if (phase == Phase::decode || !kernels.linear_reads_x_unpacked(type)) return columns;
  return columns % kConflict ? columns : columns + kPadding;
}

}  // namespace tinyllm
