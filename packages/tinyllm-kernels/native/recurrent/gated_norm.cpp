// Gated RMSNorm of rows.
#include "recurrent/gated_norm.h"

#include "recurrent/tasks.h"

namespace tinyllm::TINYLLM_ISA {

void gated_norm_rows(const GatedNormTask& t, int64_t first, int64_t last) {
  with_type(t.type, [&]<typename T>(T*) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * t.width;
      gated_norm(static_cast<const T*>(t.x) + at, static_cast<const T*>(t.gate) + at,
                 static_cast<const T*>(t.weight), static_cast<T*>(t.y) + at, t.width, t.eps);
    }
  });
}

}  // namespace tinyllm::TINYLLM_ISA
