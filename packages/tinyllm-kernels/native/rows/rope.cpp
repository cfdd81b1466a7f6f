// Rotary position embedding of heads.
#include <cmath>
#include <cstring>

#include "isa/load_store.h"
#include "rows/tasks.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

// Rotates the feature pairs (i, i + pairs) of one head.
template <typename T>
void rotate_halves(const T* x, T* y, const float* cosines, const float* sines, int64_t pairs) {
  int64_t i = 0;
  for (; i + W <= pairs; i += W) {
    Floats a = load_as_floats(x + i), b = load_as_floats(x + pairs + i);
    Floats cosine = load(cosines + i), sine = load(sines + i);
    store_floats(y + i, a * cosine - b * sine);
    store_floats(y + pairs + i, b * cosine + a * sine);
  }
  for (; i < pairs; ++i) {
    float a = to_float(x[i]), b = to_float(x[pairs + i]);
    y[i] = from_float<T>(a * cosines[i] - b * sines[i]);
    y[pairs + i] = from_float<T>(b * cosines[i] + a * sines[i]);
  }
}

// Rotates the feature pairs (2i, 2i + 1) of one head.
template <typename T>
void rotate_neighbors(const T* x, T* y, const float* cosines, const float* sines, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    float a = to_float(x[2 * i]), b = to_float(x[2 * i + 1]);
    y[2 * i] = from_float<T>(a * cosines[i] - b * sines[i]);
    y[2 * i + 1] = from_float<T>(b * cosines[i] + a * sines[i]);
  }
}

}  // namespace

// Positions `first` to `last`.
void rope_table_rows(const RopeTableTask& t, int64_t first, int64_t last) {
  for (int64_t n = first; n < last; ++n) {
    float *cosines = t.table + 2 * n * t.pairs, *sines = cosines + t.pairs;
    const float position = static_cast<float>(t.positions[n]);
    for (int64_t i = 0; i < t.pairs; ++i) {
      const float angle = position * t.frequencies[i];
      cosines[i] = std::cos(angle) * t.magnitude;
      sines[i] = std::sin(angle) * t.magnitude;
    }
  }
}

// Tokens `first` to `last` of B L, in row-major order.
void rope_tokens(const RopeTask& t, int64_t first, int64_t last) {
  const int64_t pairs = t.pairs, rotated = 2 * pairs;
  with_type(t.type, [&]<typename T>(T*) {
    for (int64_t n = first; n < last; ++n) {
      const int64_t row = n / t.length, token = n % t.length;
      const float* cosines = t.table + 2 * pairs * (t.shares_positions ? token : n);
      const float* sines = cosines + pairs;
      const auto rotate = t.traditional ? rotate_neighbors<T> : rotate_halves<T>;
      for (int64_t head = 0; head < t.heads; ++head) {
        const int64_t x_offset = row * t.strides[0] + token * t.strides[1] + head * t.strides[2];
        const int64_t y_offset =
            row * t.y_strides[0] + token * t.y_strides[1] + head * t.y_strides[2];
        const T* x = static_cast<const T*>(t.x) + x_offset;
        T* y = static_cast<T*>(t.y) + y_offset;
        rotate(x, y, cosines, sines, pairs);
        if (x != y) std::memcpy(y + rotated, x + rotated, (t.dim - rotated) * sizeof(T));
      }
    }
  });
}

}  // namespace tinyllm::TINYLLM_TIER
