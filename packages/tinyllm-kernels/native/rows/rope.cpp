#include "rows/tasks.h"

#include <cmath>
#include <vector>

#include "isa/load_store.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

template <typename T>
void turn(const T* x, T* y, const float* cosines, const float* sines, int64_t half) {
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    Floats a = load_as_floats(x + i), b = load_as_floats(x + half + i);
    Floats cosine = load(cosines + i), sine = load(sines + i);
    store_floats(y + i, a * cosine - b * sine);
    store_floats(y + half + i, b * cosine + a * sine);
  }
  for (; i < half; ++i) {
    float a = to_float(x[i]), b = to_float(x[half + i]);
    y[i] = from_float<T>(a * cosines[i] - b * sines[i]);
    y[half + i] = from_float<T>(b * cosines[i] + a * sines[i]);
  }
}

template <typename T>
void turn_neighbors(const T* x, T* y, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    float a = to_float(x[2 * i]), b = to_float(x[2 * i + 1]);
    y[2 * i] = from_float<T>(a * cosines[i] - b * sines[i]);
    y[2 * i + 1] = from_float<T>(b * cosines[i] + a * sines[i]);
  }
}

}  // namespace

// Tokens are counted through all rows: token `n` is that of row n / L at n % L.
void rope_tokens(const RopeTask& t, int64_t first, int64_t last) {
  const int64_t half = t.dim / 2;
  std::vector<float> cosines(half), sines(half);
  with_type(t.type, [&]<typename T>(T*) {
    for (int64_t n = first; n < last; ++n) {
      const int64_t row = n / t.length, token = n % t.length;
      const float position = static_cast<float>(t.positions[t.one_row ? token : n]);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = position * t.frequencies[i];
        cosines[i] = std::cos(angle) * t.magnitude;
        sines[i] = std::sin(angle) * t.magnitude;
      }
      for (int64_t head = 0; head < t.heads; ++head) {
        const T* x = static_cast<const T*>(t.x) + row * t.strides[0] + token * t.strides[1] +
                     head * t.strides[2];
        T* y = static_cast<T*>(t.y) + row * t.y_strides[0] + token * t.y_strides[1] +
               head * t.y_strides[2];
        (t.traditional ? turn_neighbors<T> : turn<T>)(x, y, cosines.data(), sines.data(), half);
      }
    }
  });
}

}  // namespace tinyllm::TINYLLM_TIER
