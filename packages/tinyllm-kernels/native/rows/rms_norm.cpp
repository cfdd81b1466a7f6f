// RMSNorm of rows.
#include <cmath>

#include "isa/load_store.h"
#include "rows/tasks.h"

namespace tinyllm::TINYLLM_TIER {

template <typename T>
void rms_norm(const T* x, const T* weight, T* y, int64_t width, float eps) {
  Floats squares = {};
  int64_t i = 0;
  for (; i + W <= width; i += W) {
    Floats v = load_as_floats(x + i);
    squares += v * v;
  }
  float total = sum(squares);
  for (; i < width; ++i) total += to_float(x[i]) * to_float(x[i]);

  const float scale = 1 / std::sqrt(total / static_cast<float>(width) + eps);
  // The quotient is rounded to T before the weight multiplies it.
  for (i = 0; i + W <= width; i += W) {
    const Floats quotient = rounded_to<T>(load_as_floats(x + i) * scale);
    store_floats(y + i, quotient * load_as_floats(weight + i));
  }
  for (; i < width; ++i) {
    const float normalized = to_float(from_float<T>(to_float(x[i]) * scale));
    y[i] = from_float<T>(normalized * to_float(weight[i]));
  }
}

void rms_norm_rows(const RmsNormTask& t, int64_t first, int64_t last) {
  const int64_t y_stride = t.y_stride ? t.y_stride : t.width;
  with_type(t.type, [&]<typename T>(T*) {
    for (int64_t row = first; row < last; ++row) {
      rms_norm(static_cast<const T*>(t.x) + row * t.width, static_cast<const T*>(t.weight),
               static_cast<T*>(t.y) + row * y_stride, t.width, t.eps);
    }
  });
}

}  // namespace tinyllm::TINYLLM_TIER
