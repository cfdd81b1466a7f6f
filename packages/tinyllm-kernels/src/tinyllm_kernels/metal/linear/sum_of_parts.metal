// Sum of the parts of split K: y[i] = parts[0][i] + parts[1][i] + ... + addend, for i < size. Each
// thread computes one number.
template <typename T, typename P, typename A>
void sum_of_parts(P parts, A addend, device T* y, uint count, uint size, uint outputs, uint i) {
  if (i >= size) {
    return;
  }
  float sum = 0;
  for (uint part = 0; part < count; ++part) {
    sum += parts[ulong(part) * size + i];
  }
  y[i] = T(sum + addend.at(i / outputs, i % outputs));
}
