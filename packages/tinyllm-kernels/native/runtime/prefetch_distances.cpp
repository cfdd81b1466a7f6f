#include "runtime/prefetch_distances.h"

namespace tinyllm {
namespace {

enum class Processor { intel, amd_family_25, other };

Processor processor() {
#if defined(__x86_64__)
  static const Processor found = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_is("intel")) return Processor::intel;
    return __builtin_cpu_is("amdfam19h") ? Processor::amd_family_25 : Processor::other;
  }();
  return found;
#else
  return Processor::other;
#endif
}

}  // namespace

PrefetchDistances code_distances() {
  switch (processor()) {
    case Processor::intel: return {4096, 1024};
    case Processor::amd_family_25: return {8192, 2048};
    default: return {0, 0};
  }
}

PrefetchDistances row_distances() {
  switch (processor()) {
    case Processor::intel: return {4096, 2048};
    case Processor::amd_family_25: return {8192, 2048};
    default: return {0, 0};
  }
}

}  // namespace tinyllm
