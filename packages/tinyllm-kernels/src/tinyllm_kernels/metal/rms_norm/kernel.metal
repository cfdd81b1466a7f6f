// y = x / sqrt(mean(x^2) + eps) * weight. Each threadgroup computes one row of `dim` numbers.
template <typename T, typename X, typename W>
void rms_norm(X x, W weight, device T* y, uint dim, float eps, uint row, uint lane, uint simdgroup,
              uint simdgroups, threadgroup float* partial) {
  const uint begin = simdgroup * 32 + lane, step = simdgroups * 32;
  const ulong first = ulong(row) * dim;

  // 1. The mean of the squares, in float32.
  float squares = 0;
  for (uint i = begin; i < dim; i += step) {
    const float value = float(x[first + i]);
    squares += value * value;
  }
  const float mean = group_sum(squares, partial, lane, simdgroup, simdgroups) / float(dim);
  const float inverse = metal::precise::rsqrt(mean + eps);

  // 2. Each number, read from the cache: rounded, then times the weight, as Qwen was trained.
  for (uint i = begin; i < dim; i += step) {
    y[first + i] = T(float(T(float(x[first + i]) * inverse)) * float(weight[i]));
  }
}
