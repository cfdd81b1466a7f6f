// Rotary position embedding. A simdgroup rotates one head of one token: each lane rotates every
// 32nd pair of features by the angle position * frequency.

// Leaves a feature unchanged, for a rotation without a norm.
struct Identity {
  float operator()(float value, uint) const { return value; }
};

// RMSNorm of one feature of a head. It rounds both products to T, as the kernel of RMSNorm does.
template <typename T, typename W>
struct HeadNorm {
  W weight;           // `dim` numbers
  float inverse_rms;  // of the head
  float operator()(float value, uint i) const {
    return float(T(float(T(value * inverse_rms)) * float(weight[i])));
  }
};

// Returns the RMSNorm of a head of `dim` features. All lanes of the simdgroup must call it.
template <typename T, typename W, typename X>
HeadNorm<T, W> head_norm_of(X head, W weight, uint dim, float eps, uint lane) {
  float squares = 0;
  for (uint i = lane; i < dim; i += 32) {
    const float value = float(head[i]);
    squares += value * value;
  }
  return {weight, metal::precise::rsqrt(simd_sum(squares) / float(dim) + eps)};
}

// Normalizes the `dim` features of `head` with `norm`, rotates the first `rotated_dim` of them, and
// writes all of them to `y`.
//
// Pair p is the features p and p + rotated_dim / 2, or the features 2 p and 2 p + 1 if TRADITIONAL.
// `frequencies` has the angle of each pair at position 1, in radians. `magnitude` scales the
// result.
template <typename T, bool TRADITIONAL, typename X, typename F, typename Norm>
void rope(X head, F frequencies, device T* y, uint dim, uint rotated_dim, int position,
          float magnitude, uint lane, Norm norm) {
  const uint half_dim = rotated_dim / 2;
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
  for (uint k = rotated_dim + lane; k < dim; k += 32) {
    y[k] = T(norm(float(head[k]), k));
  }
}
