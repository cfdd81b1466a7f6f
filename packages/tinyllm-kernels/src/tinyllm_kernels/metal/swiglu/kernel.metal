// y = gate / (1 + exp(-gate)) * up. Each thread computes one number.
#include <metal_stdlib>
using namespace metal;

template <typename T, typename G, typename U>
void swiglu(G gate, U up, device T* y, uint count, uint i) {
  if (i >= count) {
    return;
  }
  // exp(-abs(gate)) is at most 1, whatever the gate.
  const float value = float(gate[i]);
  const float decay = metal::precise::exp(-metal::abs(value));
  const float sigmoid = (value < 0 ? decay : 1.0f) / (1.0f + decay);
  y[i] = T(value * sigmoid * float(up[i]));
}
