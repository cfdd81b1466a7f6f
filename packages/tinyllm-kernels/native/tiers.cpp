#include "tiers.h"

#include <cstdlib>
#include <stdexcept>

namespace tinyllm {

namespace {

std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  bool integers = wide && __builtin_cpu_supports("avx512vnni");
  // AMD multiplies bfloat16 at twice the rate of floats; Intel at half, so that it stays out there.
  if (integers && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd")) {
    found.push_back(&avx512bf16::kernels);
  }
  if (integers) found.push_back(&avx512vnni::kernels);
  if (wide) found.push_back(&avx512::kernels);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    found.push_back(&avx2::kernels);
  }
#endif
  found.push_back(&portable::kernels);
  return found;
}

}  // namespace

const std::vector<const Kernels*>& tiers() {
  static const std::vector<const Kernels*> found = supported();
  return found;
}

const Kernels& chosen_tier() {
  const char* wanted = std::getenv("TINYLLM_CPU_ISA");
  if (!wanted || !*wanted) return *tiers().front();
  std::string names;
  for (const Kernels* kernels : tiers()) {
    if (std::string(kernels->name) == wanted) return *kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  throw std::invalid_argument("TINYLLM_CPU_ISA: expected one of " + names + ", got " + wanted);
}

}  // namespace tinyllm
