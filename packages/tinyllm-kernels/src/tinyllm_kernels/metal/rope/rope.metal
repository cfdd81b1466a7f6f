// Pairs of a head turn by position * frequency: one head of one token for a simdgroup.

// A head as it is.
struct Plain {
  float operator()(float value, uint) const { return value; }
};

// A head normalized and weighted, each rounded to T, as RMSNorm does it.
template <typename T, typename W>
struct Normalized {
  W weight;
  float inverse;
  float operator()(float value, uint i) const {
    return float(T(float(T(value * inverse)) * float(weight[i])));
  }
};

template <typename T, typename W, typename X>
Normalized<T, W> normalized(X head, W weight, uint dim, float eps, uint lane) {
  float squares = 0;
  for (uint i = lane; i < dim; i += 32) {
    const float value = float(head[i]);
    squares += value * value;
  }
  return {weight, metal::precise::rsqrt(simd_sum(squares) / float(dim) + eps)};
}

// Pair i is features i and i + dim / 2, or neighbors if TRADITIONAL.
template <typename T, bool TRADITIONAL, typename X, typename F, typename Feature>
void rope(X head, F frequencies, device T* y, uint dim, int position, float magnitude, uint lane,
          Feature feature) {
  const uint half_dim = dim / 2;
  for (uint pair = lane; pair < half_dim; pair += 32) {
    const float angle = float(position) * frequencies[pair];
    const float cosine = metal::precise::cos(angle) * magnitude;
    const float sine = metal::precise::sin(angle) * magnitude;
    const uint i = TRADITIONAL ? 2 * pair : pair;
    const uint j = TRADITIONAL ? i + 1 : i + half_dim;
    const float a = feature(float(head[i]), i), b = feature(float(head[j]), j);
    y[i] = T(a * cosine - b * sine);
    y[j] = T(b * cosine + a * sine);
  }
}
