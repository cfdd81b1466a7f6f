// y[i] = parts[0][i] + parts[1][i] + ...: one number for a thread.
template <typename T, typename P>
void sum_of_parts(P parts, device T* y, uint count, uint size, uint i) {
  if (i >= size) {
    return;
  }
  float sum = 0;
  for (uint part = 0; part < count; ++part) {
    sum += parts[ulong(part) * size + i];
  }
  y[i] = T(sum);
}
