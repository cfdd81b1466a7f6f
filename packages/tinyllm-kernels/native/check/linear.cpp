#include "check/checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "check/data/matrix.h"
#include "layers/products/products.h"

namespace tinyllm::check {
namespace {

// Row m of x, rounded to 8 bits group by group if `rounds`.
std::vector<double> multiplied_row(const Weights& w, const Array& x, int m, bool rounds) {
  const int K = w.columns;
  std::vector<double> row(K);
  for (int k = 0; k < K; ++k) row[k] = x.at(m * K + k);
  if (!rounds) return row;
  for (int first = 0; first < K; first += w.group) {
    double* group = row.data() + first;
    double largest = 0;
    for (int k = 0; k < w.group; ++k) largest = std::max(largest, std::fabs(group[k]));
    const float inverse = 127 / static_cast<float>(largest);  // in float: other numbers would be ties
    for (int k = 0; k < w.group; ++k) {
      group[k] = std::nearbyint(static_cast<float>(group[k]) * inverse) * largest / 127;
    }
  }
  return row;
}

// x w^T with a bias and a residual, of `rows` tokens; `numbers` are the numbers of w.
void check_product(const KernelTable& kernels, const Weights& w, const std::vector<double>& numbers,
                   Type type, Phase phase, int rows) {
  const int N = w.rows, K = w.columns;
  Array x = Array::random(type, size_t(rows) * K), y(type, size_t(rows) * N);
  Array bias = Array::random(type, N), residual = Array::random(type, size_t(rows) * N);
  Operand operand(kernels, x.bytes.data(), type, rows, K, phase);
  multiply(kernels, {{&operand, &w, bias.bytes.data(), residual.bytes.data(), y.bytes.data()}});
  std::vector<double> expected(size_t(rows) * N);
  const bool rounds = rounds_x_to_int8(kernels.linear_kernel(w, type, phase, rows));
  for (int m = 0; m < rows; ++m) {
    const std::vector<double> row = multiplied_row(w, x, m, rounds);
    for (int n = 0; n < N; ++n) {
      expected[m * N + n] = bias.at(n) + residual.at(m * N + n) + dot(&row[0], &numbers[n * K], K);
    }
  }
  compare(kernels, "linear", y, expected);
}

// silu(x gate^T) * (x up^T) in separate products and together. Rows of x and y are `row_stride`
// apart. Both must have the same bits, and the rows of y must have nothing written between them.
void check_gated(const KernelTable& kernels, const Weights& gate, const Weights& up, Type type,
                 int rows) {
  constexpr Phase phase = Phase::prefill;
  const int N = gate.rows, K = gate.columns;
  const int64_t x_stride = row_stride(kernels, type, phase, K), size = size_of(type);
  const int64_t y_stride = N + 32;
  Array x = Array::random(type, size_t(rows) * K), padded(type, rows * x_stride);
  for (int row = 0; row < rows; ++row) {
    std::memcpy(padded.bytes.data() + row * x_stride * size, x.bytes.data() + row * K * size,
                K * size);
  }
  Operand operand(kernels, x.bytes.data(), type, rows, K, phase);
  Operand padded_operand(kernels, padded.bytes.data(), type, rows, K, phase, x_stride);
  Array separate(type, size_t(rows) * N), scratch(type, rows * y_stride);
  multiply(kernels, {{&operand, &gate, nullptr, nullptr, separate.bytes.data()},
                     {&operand, &up, nullptr, nullptr, scratch.bytes.data()}});
  kernels.swiglu_range({separate.bytes.data(), scratch.bytes.data(), separate.bytes.data(), type},
                       0, int64_t{rows} * N);
  Array y(type, rows * y_stride);
  std::vector<char> expected = y.bytes;
  multiply_gated(kernels, {{&padded_operand, &gate, &up, scratch.bytes.data(), y.bytes.data(),
                            y_stride}});
  for (int row = 0; row < rows; ++row) {
    std::memcpy(expected.data() + row * y_stride * size, separate.bytes.data() + row * N * size,
                N * size);
  }
  expect(y.bytes == expected, kernels, "the bits of separate products in a gated product");
}

void check_packed(const KernelTable& kernels, Type type, const Matrix& matrix, Phase phase,
                  std::initializer_list<int> rows) {
  const int N = matrix.w.rows;
  const std::vector<double> numbers = matrix.numbers();
  for (int count : rows) check_product(kernels, matrix.w, numbers, type, phase, count);
  const bool can_interleave = kernels.linear_interleaved_rows(matrix.w);
  for (int side : {4, 8, 16}) {  // W of this instruction set, and other numbers
    if (!can_interleave || N % side) continue;
    const Matrix interleaved = matrix.interleaved(side);
    for (int count : rows) {
      for (Type of_x : {type, Type::float32}) {
        check_product(kernels, interleaved.w, numbers, of_x, phase, count);
      }
    }
  }
}

// Products that round x to 8 bits, if this instruction set has them.
void check_bytes(const KernelTable& kernels, Type type, const Matrix& matrix) {
  Matrix plain = matrix;
  plain.w.int8_activations = true;
  if (!rounds_x_to_int8(kernels.linear_kernel(plain.w, type, Phase::decode, 1))) return;
  check_packed(kernels, type, plain, Phase::decode, {1, 7, 17});
  check_packed(kernels, type, plain, Phase::prefill, {3, 16, 38});
}

Weights dense_weights(const Array& matrix, int N, int K, Type type) {
  Weights w{};
  w.data = matrix.bytes.data(), w.rows = N, w.columns = K, w.mode = Mode::dense, w.type = type;
  return w;
}

void check_dense(const KernelTable& kernels, Type type, int N, int K, Phase phase,
                 std::initializer_list<int> rows) {
  const Array matrix = Array::random(type, size_t(N) * K);
  const Weights w = dense_weights(matrix, N, K, type);
  const std::vector<double> numbers = matrix.numbers();
  for (int count : rows) check_product(kernels, w, numbers, type, phase, count);
}

}  // namespace

void check_linear(const KernelTable& kernels, Type type) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {32, 64, 128}) {
      const Matrix matrix(27, 256, bits, group, type);
      check_packed(kernels, type, matrix, Phase::decode, {1, 3, 6});
      check_packed(kernels, type, matrix, Phase::prefill, {2, 9});
    }
    check_bytes(kernels, type, Matrix(27, 384, bits, 64, type));
    check_bytes(kernels, type, Matrix(48, 384, bits, 32, type));
    // Two panels and a single one, several blocks of columns and a remainder.
    check_bytes(kernels, type, Matrix(56, 1152, bits, 64, type));
    const Matrix whole(48, 384, bits, bits == 4 ? 64 : 128, type);
    check_packed(kernels, type, whole, Phase::decode, {1, 5, 17});
    check_packed(kernels, type, Matrix(80, 384, bits, 32, type), Phase::prefill, {9, 33});
    // Whole tiles of rows, of columns and of tokens, and a remainder of each.
    check_packed(kernels, type, Matrix(70, 608, bits, 32, type), Phase::prefill, {17, 70});
    // Several blocks of columns of the integer kernels, and a remainder.
    check_packed(kernels, type, Matrix(70, 1152, bits, 64, type), Phase::prefill, {17, 70});
  }
  for (Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4}) {
    const Matrix matrix(27, 288, mode);
    check_packed(kernels, type, matrix, Phase::decode, {1, 6});
    check_packed(kernels, type, matrix, Phase::prefill, {2, 33});
  }
  for (Mode mode : {Mode::mxfp4, Mode::nvfp4}) {
    const Matrix matrix(48, 384, mode);
    check_packed(kernels, type, matrix, Phase::decode, {1, 5, 17});
    check_packed(kernels, type, matrix, Phase::prefill, {9, 33});
    check_packed(kernels, type, Matrix(70, 1152, mode), Phase::prefill, {70});
    check_bytes(kernels, type, matrix);
  }
  check_dense(kernels, type, 70, 608, Phase::decode, {1, 4});
  check_dense(kernels, type, 70, 608, Phase::prefill, {17, 70});
  check_dense(kernels, type, 33, 37, Phase::prefill, {2, 33});
  // More bytes of x than a matrix unit keeps in a cache, with too few panels of w for two threads
  // and with enough.
  if (kernels.linear_reads_x_unpacked(type)) {
    check_dense(kernels, type, 33, 8192, Phase::prefill, {110});
    const Matrix wide(64, 8192, 4, 64, type);
    check_product(kernels, wide.interleaved(16).w, wide.numbers(), type, Phase::prefill, 80);
  }
  // 512 columns and rows: `row_stride` adds a gap. Formats are equal or differ.
  const Matrix plain(512, 512, 4, 64, type), equal(512, 512, 4, 64, type);
  const bool interleaves = kernels.linear_interleaved_rows(plain.w);
  const Matrix gate = interleaves ? plain.interleaved(16) : plain;
  const Matrix equal_up = interleaves ? equal.interleaved(16) : equal, up(512, 512, 8, 32, type);
  const Array dense = Array::random(type, 512 * 512);
  for (int rows : {3, 37}) {
    check_gated(kernels, gate.w, equal_up.w, type, rows);
    check_gated(kernels, gate.w, up.w, type, rows);
    check_gated(kernels, dense_weights(dense, 512, 512, type), equal_up.w, type, rows);
    check_gated(kernels, Matrix(27, 512, 3, 32, type).w, Matrix(27, 512, Mode::mxfp4).w, type,
                rows);
  }
}

}  // namespace tinyllm::check
