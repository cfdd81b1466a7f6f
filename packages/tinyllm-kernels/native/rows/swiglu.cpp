// SwiGLU: silu(gate) * up, number by number.
#include "isa/load_store.h"
#include "rows/silu.h"
#include "rows/tasks.h"

namespace tinyllm::TINYLLM_ISA {

void swiglu_range(const SwigluTask& t, int64_t first, int64_t last) {
  with_type(t.type, [&]<typename T>(T*) {
    const T* gate = static_cast<const T*>(t.gate);
    const T* up = static_cast<const T*>(t.up);
    T* y = static_cast<T*>(t.y);
    int64_t i = first;
    for (; i + W <= last; i += W) {
      store_floats(y + i, silu(load_as_floats(gate + i)) * load_as_floats(up + i));
    }
    for (; i < last; ++i) {
      y[i] = from_float<T>(silu(splat(to_float(gate[i])))[0] * to_float(up[i]));
    }
  });
}

}  // namespace tinyllm::TINYLLM_ISA
