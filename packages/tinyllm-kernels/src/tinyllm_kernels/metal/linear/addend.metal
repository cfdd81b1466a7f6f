// Addend of a product kernel: a number for each token and output, added before rounding.

struct NoAddend {
  float at(uint, uint) const { return 0.0f; }
};

// Array of numbers: one row for each token (a residual), or one row for all tokens (a bias, with
// `token_stride` 0). P is a pointer.
template <typename P>
struct Addend {
  P x;
  uint token_stride;

  float at(uint token, uint output) const {
    return float(x[ulong(token) * token_stride + output]);
  }
};

// Returns the addend for the tokens from `first_token` on.
template <typename P>
Addend<P> addend_from(P x, uint token_stride, uint first_token) {
  return {x + ulong(first_token) * token_stride, token_stride};
}
