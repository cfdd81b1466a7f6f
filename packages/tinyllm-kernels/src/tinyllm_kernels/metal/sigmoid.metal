#include <metal_stdlib>
using namespace metal;

// Returns 1 / (1 + exp(-x)). exp(-abs(x)) is at most 1, so it cannot overflow.
inline float sigmoid(float x) {
  const float decay = metal::precise::exp(-metal::abs(x));
  return (x < 0 ? decay : 1.0f) / (1.0f + decay);
}
