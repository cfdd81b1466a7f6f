// Rotary position embedding: a simdgroup rotates the pairs of one head by position * frequency.

// Leaves a feature as it is.
struct Identity {
  float operator()(float value, uint) const { return value; }
};

// Normalizes and weights a feature, rounding each result to T as the kernel of RMSNorm does.
template <typename T, typename W>
struct HeadNorm {
  W weight;
  float inverse;
  float operator()(float value, uint i) const {
    return float(T(float(T(value * inverse)) * float(weight[i])));
  }
};

template <typename T, typename W, typename X>
HeadNorm<T, W> rms_norm_of(X head, W weight, uint dim, float eps, uint lane) {
  float squares = 0;
  for (uint i = lane; i < dim; i += 32) {
    const float value = float(head[i]);
    squares += value * value;
  }
  return {weight, metal::precise::rsqrt(simd_sum(squares) / float(dim) + eps)};
}

// Pair i is features i and i + dim / 2, or features 2 i and 2 i + 1 if TRADITIONAL. `norm` is
// applied to each feature before the rotation.
template <typename T, bool TRADITIONAL, typename X, typename F, typename Norm>
void rope(X head, F frequencies, device T* y, uint dim, int position, float magnitude, uint lane,
          Norm norm) {
  const uint half_dim = dim / 2;
  for (uint pair = lane; pair < half_dim; pair += 32) {
    const float angle = float(position) * frequencies[pair];
    const float cosine = metal::precise::cos(angle) * magnitude;
    const float sine = metal::precise::sin(angle) * magnitude;
    const uint i = TRADITIONAL ? 2 * pair : pair;
    const uint j = TRADITIONAL ? i + 1 : i + half_dim;
    const float a = norm(float(head[i]), i), b = norm(float(head[j]), j);
    y[i] = T(a * cosine - b * sine);
    y[j] = T(b * cosine + a * sine);
  }
}
