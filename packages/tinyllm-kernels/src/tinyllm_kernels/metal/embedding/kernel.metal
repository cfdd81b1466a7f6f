// Embedding lookup: y[n] is row ids[n] of a packed table with `dim` columns. A thread computes one
// number.
template <typename T, int BITS, typename I, typename W, typename S, typename B>
void embedding(I ids, W packed, S scales, B biases, device T* y, uint dim, uint group_size, uint n,
               uint column) {
  if (column >= dim) {
    return;
  }
  const ulong row = ulong(ids[n]);
  const ulong group = row * (dim / group_size) + column / group_size;
  const float code = float(code_at<BITS>(packed + row * (dim / 32 * BITS), column));
  y[ulong(n) * dim + column] = T(float(scales[group]) * code + float(biases[group]));
}
