// The output gate of attention: x * sigmoid(gate), number by number.
#include "isa/load_store.h"
#include "rows/silu.h"
#include "rows/tasks.h"

namespace tinyllm::TINYLLM_ISA {

void output_gate_range(const OutputGateTask& t, int64_t first, int64_t last) {
  with_type(t.type, [&]<typename T>(T*) {
    const T *x = static_cast<const T*>(t.x), *gate = static_cast<const T*>(t.gate);
    T* y = static_cast<T*>(t.y);
    int64_t i = first;
    for (; i + W <= last; i += W) {
      store_floats(y + i, load_as_floats(x + i) * sigmoid(load_as_floats(gate + i)));
    }
    for (; i < last; ++i) {
      y[i] = from_float<T>(to_float(x[i]) * sigmoid(splat(to_float(gate[i])))[0]);
    }
  });
}

}  // namespace tinyllm::TINYLLM_ISA
