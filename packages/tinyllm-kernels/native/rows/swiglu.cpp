#include "rows/tasks.h"

#include "isa/load_store.h"

namespace tinyllm::TINYLLM_TIER {

// The sigmoid by way of e^-|x|, which never overflows. A NaN stays one.
inline Floats silu(Floats x) {
  Floats zero{};
  Floats below = exp(x < zero ? x : -x);
  Floats share = (x < zero ? below : splat(1)) / (below + 1);
  return x * (x == x ? share : x);
}

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

}  // namespace tinyllm::TINYLLM_TIER
