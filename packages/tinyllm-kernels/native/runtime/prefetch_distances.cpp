#include "runtime/prefetch_distances.h"

namespace tinyllm {

bool prefetches_in_two_steps() {
#if defined(__x86_64__)
  static const bool is_intel = [] {
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") != 0;
  }();
  return is_intel;
#else
  return false;
#endif
}

}  // namespace tinyllm
