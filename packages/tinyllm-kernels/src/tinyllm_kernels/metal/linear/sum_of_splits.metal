// Sum of the splits of K: y[i] = partial[0][i] + partial[1][i] + ... + addend, for i < size. Each
// thread computes one number.
template <typename T, typename P, typename A>
void sum_of_splits(P partial, A addend, device T* y, uint count, uint size, uint outputs, uint i) {
  if (i >= size) {
    return;
  }
  float sum = 0;
  for (uint split = 0; split < count; ++split) {
    sum += partial[ulong(split) * size + i];
  }
  y[i] = T(sum + addend.at(i / outputs, i % outputs));
}
