// Weighted sums of rows: the outputs of the experts of a token, combined.
#include "isa/load_store.h"
#include "rows/tasks.h"

namespace tinyllm::TINYLLM_ISA {

void weighted_sums(const WeightedSumTask& t, int64_t first, int64_t last) {
  with_type(t.type, [&]<typename T>(T*) {
    const T* rows = static_cast<const T*>(t.rows);
    for (int64_t n = first; n < last; ++n) {
      const int64_t* indices = t.indices + n * t.count;
      const float* weights = t.weights + n * t.count;
      const T* residual = static_cast<const T*>(t.residual) + n * t.width;
      T* y = static_cast<T*>(t.y) + n * t.width;
      int64_t i = 0;
      for (; i + W <= t.width; i += W) {
        Floats total = {};
        for (int64_t k = 0; k < t.count; ++k) {
          total += load_as_floats(rows + indices[k] * t.width + i) * weights[k];
        }
        store_floats(y + i, total + load_as_floats(residual + i));
      }
      for (; i < t.width; ++i) {
        float total = 0;
        for (int64_t k = 0; k < t.count; ++k) {
          total += to_float(rows[indices[k] * t.width + i]) * weights[k];
        }
        y[i] = from_float<T>(total + to_float(residual[i]));
      }
    }
  });
}

}  // namespace tinyllm::TINYLLM_ISA
