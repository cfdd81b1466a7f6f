// Affine quantization of a row, group by group, with the arithmetic of mx.quantize.
#include <algorithm>
#include <cmath>

#include "isa/load_store.h"
#include "rows/tasks.h"

namespace tinyllm::TINYLLM_ISA {
namespace {

constexpr int kMaxGroup = 128;  // MLX has groups of 32, 64 and 128

// A code stands for code * scale + bias.
struct Affine {
  float scale, bias;
};

// Spreads the codes 0 to `max_code` over the range of a group. The end of the range that is farther
// from zero gets a code of its own, and so does zero if it is in the range.
Affine affine_of(float low, float high, float max_code) {
  constexpr float kSmallestScale = 1e-7f;
  const bool ascending = std::fabs(low) > std::fabs(high);
  const float step = std::max((high - low) / max_code, kSmallestScale);
  const float scale = ascending ? step : -step;
  const float farther_end = ascending ? low : high;
  const float zero_code = std::rint(farther_end / scale);
  return zero_code == 0 ? Affine{scale, 0} : Affine{farther_end / zero_code, farther_end};
}

// Rounds to the nearest codes, ties to even, clamped to 0 .. max_code. NaN gives code 0.
Bytes codes_of(Floats x, Affine affine, float max_code) {
  Floats zero{}, last = splat(max_code);
  Floats codes = (x - affine.bias) / affine.scale;
  codes = codes > zero ? codes : zero;
  codes = codes < last ? codes : last;
  codes = (codes + kRounder) - kRounder;
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
  const float low = -largest_lane(-lows), high = largest_lane(highs);
  const float max_code = static_cast<float>((1 << bits) - 1);
  const Affine affine = affine_of(low, high, max_code);
  scale = from_float<T>(affine.scale);
  bias = from_float<T>(affine.bias);
  uint8_t codes[kMaxGroup];
  for (int d = 0; d < group; d += W) {
    const Bytes some_codes = codes_of(load_as_floats(from + d), affine, max_code);
    std::memcpy(codes + d, &some_codes, sizeof some_codes);
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

}  // namespace tinyllm::TINYLLM_ISA
