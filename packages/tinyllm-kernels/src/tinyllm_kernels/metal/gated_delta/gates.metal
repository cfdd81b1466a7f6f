// Gates of a value head: factor `decay` of the state, and `strength` of its correction.
template <typename A, typename B>
struct Gates {
  A a;         // of the head. The number of the next token is `heads` numbers later.
  B b;
  float rate;  // exp(a_log)
  float bias;
  int heads;

  // Returns exp(-rate * softplus(a + bias)).
  float decay(int token) const {
    const float x = float(a[int64_t(token) * heads]) + bias;
    const float e = metal::precise::exp(-metal::abs(x));
    // log(1 + e). If e is small, u is a rounded number, and the factor corrects the logarithm.
    const float u = 1.0f + e;
    const float log_of_sum = u == 1.0f ? e : metal::precise::log(u) * (e / (u - 1.0f));
    return metal::precise::exp(-rate * (metal::max(x, 0.0f) + log_of_sum));
  }

  float strength(int token) const { return sigmoid(float(b[int64_t(token) * heads])); }
};

template <typename A, typename B>
Gates<A, B> gates_of_head(A a, B b, float a_log, float bias, int head, int heads) {
  return {a + head, b + head, metal::precise::exp(a_log), bias, heads};
}
