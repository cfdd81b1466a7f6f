#include "check/checks.h"

#include <vector>

#include "check/matrix.h"
#include "layers/products/products.h"

namespace tinyllm::check {
namespace {

// x w^T with a bias and a residual, of `rows` tokens; `numbers` are the numbers of w.
void check_product(const Kernels& kernels, const Weights& w, const std::vector<double>& numbers,
                   Type type, Phase phase, int rows) {
  const int N = w.rows, K = w.columns;
  Array x = Array::random(type, size_t(rows) * K), y(type, size_t(rows) * N);
  Array bias = Array::random(type, N), residual = Array::random(type, size_t(rows) * N);
  Operand operand(kernels, x.bytes.data(), type, rows, K, phase);
  multiply(kernels, {{&operand, &w, bias.bytes.data(), residual.bytes.data(), y.bytes.data()}});
  std::vector<double> expected(size_t(rows) * N), row(K);
  for (int m = 0; m < rows; ++m) {
    for (int k = 0; k < K; ++k) row[k] = x.at(m * K + k);
    for (int n = 0; n < N; ++n) {
      double total = bias.at(n) + residual.at(m * N + n);
      for (int k = 0; k < K; ++k) total += row[k] * numbers[n * K + k];
      expected[m * N + n] = total;
    }
  }
  compare(kernels, "linear", y, expected);
}

void check_packed(const Kernels& kernels, Type type, const Matrix& matrix, Phase phase,
                  std::initializer_list<int> rows) {
  const int N = matrix.w.rows, K = matrix.w.columns;
  std::vector<double> numbers(size_t(N) * K);
  for (int n = 0; n < N; ++n) {
    for (int k = 0; k < K; ++k) numbers[n * K + k] = matrix.at(n, k);
  }
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

void check_dense(const Kernels& kernels, Type type, int N, int K, Phase phase,
                 std::initializer_list<int> rows) {
  Array matrix = Array::random(type, size_t(N) * K);
  Weights w{};
  w.data = matrix.bytes.data(), w.rows = N, w.columns = K, w.mode = Mode::dense, w.type = type;
  std::vector<double> numbers(size_t(N) * K);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = matrix.at(i);
  for (int count : rows) check_product(kernels, w, numbers, type, phase, count);
}

}  // namespace

void check_linear(const Kernels& kernels, Type type) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {32, 64, 128}) {
      const Matrix matrix(27, 256, bits, group, type);
      check_packed(kernels, type, matrix, Phase::decode, {1, 3, 6});
      check_packed(kernels, type, matrix, Phase::prefill, {2, 9});
    }
    const Matrix whole(48, 384, bits, bits == 4 ? 64 : 128, type);
    check_packed(kernels, type, whole, Phase::decode, {1, 5, 17});
    check_packed(kernels, type, Matrix(80, 384, bits, 32, type), Phase::prefill, {9, 33});
    // Whole tiles of rows, of columns and of tokens, and a remainder of each.
    check_packed(kernels, type, Matrix(70, 608, bits, 32, type), Phase::prefill, {17, 70});
  }
  for (Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4}) {
    const Matrix matrix(27, 288, mode);
    check_packed(kernels, type, matrix, Phase::decode, {1, 6});
    check_packed(kernels, type, matrix, Phase::prefill, {2, 33});
  }
  check_dense(kernels, type, 70, 608, Phase::decode, {1, 4});
  check_dense(kernels, type, 70, 608, Phase::prefill, {17, 70});
  check_dense(kernels, type, 33, 37, Phase::prefill, {2, 33});
}

}  // namespace tinyllm::check
