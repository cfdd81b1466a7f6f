// SwiGLU: y = gate / (1 + exp(-gate)) * up. A thread computes number `i` of `count`.
#include <metal_stdlib>
using namespace metal;

template <typename T, typename G, typename U>
void swiglu(G gate, U up, device T* y, uint count, uint i) {
  if (i >= count) {
    return;
  }
  // exp(-abs(gate)) is at most 1, so it cannot overflow.
  const float value = float(gate[i]);
  const float decay = metal::precise::exp(-metal::abs(value));
  const float sigmoid = (value < 0 ? decay : 1.0f) / (1.0f + decay);
  y[i] = T(value * sigmoid * float(up[i]));
}
