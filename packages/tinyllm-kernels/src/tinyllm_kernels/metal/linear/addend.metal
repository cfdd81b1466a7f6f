// The numbers that a product kernel adds before it rounds.

struct NoAddend {
  float at(uint, uint) const { return 0.0f; }
};

// One number for each output: of each token (a residual), or the same row for all tokens (a bias,
// with `token_stride` 0). P is a pointer.
template <typename P>
struct Addend {
  P x;
  uint token_stride;

  float at(uint token, uint output) const {
    return float(x[ulong(token) * token_stride + output]);
  }
};

template <typename P>
Addend<P> addend_from(P x, uint token_stride, uint first_token) {
  return {x + ulong(first_token) * token_stride, token_stride};
}
