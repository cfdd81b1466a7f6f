// Weights and products in a process that counts subnormal numbers as zero.
#include <numeric>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "check/checks.h"
#include "check/data/matrix.h"
#include "layers/products/products.h"
#include "runtime/parallel.h"

namespace tinyllm::check {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kFlushSubnormals = 0x8040;  // FTZ and DAZ
uint32_t float_mode() { return _mm_getcsr(); }
void set_float_mode(uint32_t mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
constexpr uint64_t kFlushSubnormals = 1 << 24;  // FZ
uint64_t float_mode() { return __builtin_aarch64_get_fpcr64(); }
void set_float_mode(uint64_t mode) { __builtin_aarch64_set_fpcr64(mode); }
#endif

// Every code of a format, times every scale, as an embedding row in float32. Results must be exact
// if the host counts subnormal numbers as zero, both on the caller and on the pool's threads.
void check_flushed_subnormals(const KernelTable& kernels, Mode mode) {
  const int group = mode == Mode::nvfp4 ? 16 : 32, codes = mode == Mode::mxfp8 ? 256 : 16;
  const int columns = 512, rows = 256;
  Matrix table(rows, columns, mode);
  for (size_t i = 0; i < table.codes.size(); ++i) {
    table.codes[i] = static_cast<uint8_t>(codes == 256 ? i : i % 16 | (i + 1) % 16 << 4);
    if (codes == 256 && (table.codes[i] & 0x7f) == 0x7f) table.codes[i] = 1;  // NaN
  }
  for (size_t i = 0; i < table.powers.size(); ++i) {
    // All scales but infinity, for which 0 * scale is NaN, and NaN.
    const uint8_t scale = static_cast<uint8_t>(i / (columns / group));
    table.powers[i] = mode == Mode::nvfp4 ? scale & 0x7e : scale == 255 ? 254 : scale;
  }
  std::vector<int32_t> ids(rows);
  std::iota(ids.begin(), ids.end(), 0);
  Array y(Type::float32, size_t(rows) * columns);
  const auto before = float_mode();
  set_float_mode(before | kFlushSubnormals);
  parallel_for(rows, 1 << 14, [&](int64_t first, int64_t last) {
    kernels.embedding_rows(table.w, ids.data(), first, last, y.bytes.data(), Type::float32);
  });
  const bool is_kept = (float_mode() & kFlushSubnormals) == kFlushSubnormals;
  set_float_mode(before);
  expect(is_kept, kernels, "that a task keeps the floating-point mode of its caller");
  int wrong = 0;
  for (int n = 0; n < rows; ++n) {
    for (int k = 0; k < columns; ++k) {
      wrong += y.at(size_t(n) * columns + k) != static_cast<float>(table.at(n, k));
    }
  }
  expect(wrong == 0, kernels, "exact weights where subnormal numbers count as zero");
}

// The scale-free part of a product: codes whose floats could be subnormal, times x.
void check_product_with_flushed_subnormals(const KernelTable& kernels, Mode mode, Phase phase) {
  const int rows = 24, columns = 256, tokens = 3;
  Matrix matrix(rows, columns, mode);
  for (uint8_t& byte : matrix.codes) byte = mode == Mode::mxfp8 ? byte & 0x87 : byte & 0x99;
  Array x = Array::random(Type::float32, size_t{tokens} * columns);
  Array y(Type::float32, size_t{tokens} * rows), flushed = y;
  const auto multiply_to = [&](Array& to) {
    Operand operand(kernels, x.bytes.data(), Type::float32, tokens, columns, phase);
    multiply(kernels, {{&operand, &matrix.w, nullptr, nullptr, to.bytes.data()}});
  };
  multiply_to(y);
  const auto before = float_mode();
  set_float_mode(before | kFlushSubnormals);
  multiply_to(flushed);
  set_float_mode(before);
  expect(y.bytes == flushed.bytes, kernels, "the same products where subnormal numbers count as zero");
}

}  // namespace

void check_subnormals(const KernelTable& kernels) {
  for (Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4}) {
    check_flushed_subnormals(kernels, mode);
    for (Phase phase : {Phase::prefill, Phase::decode}) {
      check_product_with_flushed_subnormals(kernels, mode, phase);
    }
  }
}

}  // namespace tinyllm::check
