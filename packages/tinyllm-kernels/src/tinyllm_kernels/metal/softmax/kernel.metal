// Softmax: y = exp(x - max x) / sum of exp(x - max x). A threadgroup computes one row of `dim`
// numbers. `maxima` and `sums` have 32 numbers each.
template <typename T, typename X>
void softmax(X x, device T* y, uint dim, uint row, uint lane, uint simdgroup, uint simdgroups,
             threadgroup float* maxima, threadgroup float* sums) {
  const uint begin = simdgroup * 32 + lane, step = simdgroups * 32;
  const ulong first = ulong(row) * dim;

  // 1. Find the largest number. If all numbers are -inf, 0 is subtracted.
  float top = -INFINITY;
  for (uint i = begin; i < dim; i += step) {
    top = metal::max(top, float(x[first + i]));
  }
  top = group_max(top, maxima, lane, simdgroup, simdgroups);
  top = top == -INFINITY ? 0.0f : top;

  // 2. Compute the sum of the exponentials, in float32.
  float total = 0;
  for (uint i = begin; i < dim; i += step) {
    total += metal::precise::exp(float(x[first + i]) - top);
  }
  total = group_sum(total, sums, lane, simdgroup, simdgroups);

  // 3. Write the results. If all numbers are -inf, they are zeros.
  const float share = total == 0 ? 0.0f : 1.0f / total;
  for (uint i = begin; i < dim; i += step) {
    y[first + i] = T(metal::precise::exp(float(x[first + i]) - top) * share);
  }
}
