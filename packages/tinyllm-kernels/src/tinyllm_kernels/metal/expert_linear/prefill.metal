// Computes a tile of y: 32 rows from `first_row` on by 32 outputs from `first_output` on. Each row
// of x has the weights of its expert. Consecutive rows with the same expert are a run. Each run
// needs one matrix product, in which the other rows of the tile are empty.
template <typename T, int BITS, typename X, typename W, typename S, typename B, typename E>
void expert_linear_prefill(X x, W packed, S scales, B biases, E experts, device T* y, uint rows,
                           uint outputs, uint inputs, uint group_size, uint first_row,
                           uint first_output, uint thread_index, uint simdgroup,
                           threadgroup T* x_tile, threadgroup T* w_tile,
                           threadgroup float* y_tile) {
  const uint units = inputs / 32, stop = metal::min(first_row + 32, rows);
  uint first = first_row;
  while (first < stop) {
    const int expert = experts[first];
    uint end = first + 1;
    while (end < stop && experts[end] == expert) ++end;
    const ulong row = ulong(expert) * outputs, group = row * (inputs / group_size);
    matrix_product<T, T, BITS>(x, packed + row * units * BITS, scales + group, biases + group,
                               NoAddend(), y, end, outputs, inputs, group_size, 0, units, units,
                               first, first_output, thread_index, simdgroup, x_tile, w_tile,
                               y_tile);
    first = end;
  }
}
