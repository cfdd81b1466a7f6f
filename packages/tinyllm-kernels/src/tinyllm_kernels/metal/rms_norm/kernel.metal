// RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight. A threadgroup computes one row of `dim` numbers.
// `partial` has 32 numbers.
template <typename T, typename X, typename W>
void rms_norm(X x, W weight, device T* y, uint dim, float eps, uint row, uint lane, uint simdgroup,
              uint simdgroups, threadgroup float* partial) {
  const uint begin = simdgroup * 32 + lane, step = simdgroups * 32;
  const ulong first = ulong(row) * dim;

  // 1. Compute the mean of the squares, in float32.
  float squares = 0;
  for (uint i = begin; i < dim; i += step) {
    const float value = float(x[first + i]);
    squares += value * value;
  }
  const float mean = group_sum(squares, partial, lane, simdgroup, simdgroups) / float(dim);
  const float inverse = metal::precise::rsqrt(mean + eps);

  // 2. Normalize. x comes from the cache. The result is rounded before it is multiplied with the
  // weight, as in the training of Qwen.
  for (uint i = begin; i < dim; i += step) {
    y[first + i] = T(float(T(float(x[first + i]) * inverse)) * float(weight[i]));
  }
}
