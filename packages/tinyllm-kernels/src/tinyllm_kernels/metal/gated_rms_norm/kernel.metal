// Gated RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight * silu(gate). A simdgroup computes one row
// of `dim` numbers in float32, and rounds each number once. `x`, `gate` and `y` point to the row.
template <typename T, typename X, typename G, typename W>
void gated_rms_norm(X x, G gate, W weight, device T* y, uint dim, float eps, uint lane) {
  float squares = 0;
  for (uint i = lane; i < dim; i += 32) {
    const float value = float(x[i]);
    squares += value * value;
  }
  const float inverse = metal::precise::rsqrt(simd_sum(squares) / float(dim) + eps);
  for (uint column = lane; column < dim; column += 32) {
    const float g = float(gate[column]);
    y[column] = T(float(x[column]) * inverse * float(weight[column]) * (g * sigmoid(g)));
  }
}
