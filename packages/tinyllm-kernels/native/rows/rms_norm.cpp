// RMSNorm of rows.
#include "rows/rms_norm.h"

#include "rows/tasks.h"

namespace tinyllm::TINYLLM_TIER {

template <typename T>
void rms_norm(const T* x, const T* weight, T* y, int64_t width, float eps) {
  const Normalized<T> normalized{x, weight, inverse_rms(x, width, eps)};
  int64_t i = 0;
  for (; i + W <= width; i += W) store_floats(y + i, normalized.vector(i));
  for (; i < width; ++i) y[i] = from_float<T>(normalized[i]);
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
