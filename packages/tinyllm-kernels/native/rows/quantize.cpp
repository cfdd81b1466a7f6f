#include "rows/tasks.h"

#include <algorithm>
#include <cmath>

#include "isa/load_store.h"
#include "isa/lanes.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

// The largest group that MLX knows.
constexpr int kLargestGroup = 128;

struct Step {
  float scale, bias;
};

// Codes from 0 to `top` over the range of a group. The end that is farther from zero gets a code of
// its own, and zero does if it is in the range: the arithmetic of mx.quantize.
Step step_of(float low, float high, float top) {
  constexpr float kSmallestScale = 1e-7f;
  const bool downward = std::fabs(low) > std::fabs(high);
  const float size = std::max((high - low) / top, kSmallestScale);
  const float scale = downward ? size : -size;
  const float edge = downward ? low : high;
  const float zero = std::rint(edge / scale);
  return zero == 0 ? Step{scale, 0} : Step{edge / zero, edge};
}

// The nearest codes, ties to even; what is no number is code 0.
Bytes codes_of(Floats x, Step step, float top) {
  Floats zero{}, last = splat(top);
  Floats codes = (x - step.bias) / step.scale;
  codes = codes > zero ? codes : zero;
  codes = codes < last ? codes : last;
  codes = (codes + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  return __builtin_convertvector(__builtin_convertvector(codes, Ints), Bytes);
}

template <typename T>
void quantize_group(const T* from, int group, int bits, uint8_t* to, T& scale, T& bias) {
  Floats lows = load_as_floats(from), highs = lows;
  for (int d = W; d < group; d += W) {
    Floats x = load_as_floats(from + d);
    lows = x < lows ? x : lows;
    highs = max(x, highs);
  }
  const float top = static_cast<float>((1 << bits) - 1);
  const Step step = step_of(-highest_lane(-lows), highest_lane(highs), top);
  scale = from_float<T>(step.scale), bias = from_float<T>(step.bias);
  uint8_t codes[kLargestGroup];
  for (int d = 0; d < group; d += W) {
    Bytes found = codes_of(load_as_floats(from + d), step, top);
    std::memcpy(codes + d, &found, sizeof found);
  }
  if (bits == 8) {
    std::copy_n(codes, group, to);
  } else {
    for (int i = 0; i < group / 2; ++i) {
      to[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
  }
}

}  // namespace

void quantize_row(const QuantizeTask& t) {
  with_type(t.type, [&]<typename T>(T*) {
    const T* row = static_cast<const T*>(t.row);
    uint8_t* codes = static_cast<uint8_t*>(t.codes);
    for (int64_t group = 0; group < t.dim / t.group; ++group) {
      quantize_group(row + group * t.group, t.group, t.bits, codes + group * t.group * t.bits / 8,
                     static_cast<T*>(t.scales)[group], static_cast<T*>(t.biases)[group]);
    }
  });
}

}  // namespace tinyllm::TINYLLM_TIER
