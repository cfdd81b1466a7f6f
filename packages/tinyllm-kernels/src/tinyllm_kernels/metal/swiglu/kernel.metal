// SwiGLU: y = gate * sigmoid(gate) * up. A thread computes number `i` of `count`.
template <typename T, typename G, typename U>
void swiglu(G gate, U up, device T* y, uint count, uint i) {
  if (i >= count) {
    return;
  }
  const float value = float(gate[i]);
  y[i] = T(value * sigmoid(value) * float(up[i]));
}
