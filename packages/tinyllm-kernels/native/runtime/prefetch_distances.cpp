#include "runtime/prefetch_distances.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tinyllm {
namespace {

enum class Processor { intel, amd_family_25, amd_family_26, other };

#if defined(__x86_64__)
// The family of an AMD processor as `lscpu` shows it. GCC 12 has no name for family 26.
unsigned family() {
  unsigned signature = 0, b = 0, c = 0, d = 0;
  __get_cpuid(1, &signature, &b, &c, &d);
  return (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
}
#endif

Processor processor() {
#if defined(__x86_64__)
  static const Processor found = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_is("intel")) return Processor::intel;
    if (!__builtin_cpu_is("amd")) return Processor::other;
    switch (family()) {
      case 25: return Processor::amd_family_25;
      case 26: return Processor::amd_family_26;
      default: return Processor::other;
    }
  }();
  return found;
#else
  return Processor::other;
#endif
}

}  // namespace

PrefetchDistances code_distances() {
  switch (processor()) {
    case Processor::intel: return {6144, 2048};
    case Processor::amd_family_25: return {8192, 2048};
    default: return {0, 0};
  }
}

int64_t single_code_distance() { return processor() == Processor::amd_family_26 ? 6144 : 4096; }

PrefetchDistances row_distances() {
  switch (processor()) {
    case Processor::intel: return {6144, 2048};
    case Processor::amd_family_25: return {8192, 2048};
    case Processor::amd_family_26: return {12288, 3072};
    default: return {0, 0};
  }
}

}  // namespace tinyllm
