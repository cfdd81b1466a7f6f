// RMSNorm of rows.
#include "rows/rms_norm.h"

#include <utility>

#include "rows/tasks.h"

namespace tinyllm::TINYLLM_ISA {

namespace {

template <typename T>
void normalize(const Normalized<T>& x, T* y, int64_t width) {
  int64_t i = 0;
  for (; i + W <= width; i += W) store_floats(y + i, x.vector(i));
  for (; i < width; ++i) y[i] = from_float<T>(x[i]);
}

}  // namespace

// The scale of a row is computed a row ahead: it is the end of a long chain of operations, for
// which the processor would wait.
void rms_norm_rows(const RmsNormTask& t, int64_t first, int64_t last) {
  const int64_t y_stride = t.y_stride ? t.y_stride : t.width;
  with_type(t.type, [&]<typename T>(T*) {
    const auto* weight = static_cast<const T*>(t.weight);
    const auto row_of_x = [&](int64_t n) { return static_cast<const T*>(t.x) + n * t.width; };
    const auto scale_of = [&](int64_t n) {
      return n < last ? inverse_rms(row_of_x(n), t.width, t.eps) : 0;
    };
    float scale = scale_of(first);
    for (int64_t n = first; n < last; ++n) {
      const Normalized<T> row{row_of_x(n), weight, std::exchange(scale, scale_of(n + 1))};
      normalize(row, static_cast<T*>(t.y) + n * y_stride, t.width);
    }
  });
}

}  // namespace tinyllm::TINYLLM_ISA
