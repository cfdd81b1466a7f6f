// The instruction sets of this machine, and the choice among their kernel tables.
#include "dispatch/kernels.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include "dispatch/tile_permission.h"
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tinyllm {

// A build may leave an instruction set out. The address of its weak table is then null.
#define DECLARE_TIER(name)                             \
  namespace name {                                     \
  extern const Kernels kernels __attribute__((weak)); \
  }
DECLARE_TIER(portable)
#if defined(__x86_64__)
DECLARE_TIER(avx2)
DECLARE_TIER(avx512)
DECLARE_TIER(avx512vnni)
DECLARE_TIER(avx512bf16)
DECLARE_TIER(amx)
#elif defined(__aarch64__)
DECLARE_TIER(neon)
DECLARE_TIER(neonbf16)
#endif

namespace {

struct Tier {
  const char* name;
  const Kernels* kernels;  // null if the build left the instruction set out
};

// Returns the instruction sets of the processor, the fastest first.
std::vector<Tier> processor_tiers() {
  std::vector<Tier> tiers;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512vnni");
  const bool has_bf16 = has_vnni && __builtin_cpu_supports("avx512bf16");
  if (has_bf16 && request_tile_registers()) tiers.push_back({"amx", &amx::kernels});
  // AMD multiplies bfloat16 at twice the rate of floats, Intel at half the rate.
  if (has_bf16 && __builtin_cpu_is("amd")) {
    tiers.push_back({"avx512bf16", &avx512bf16::kernels});
  }
  if (has_vnni) tiers.push_back({"avx512vnni", &avx512vnni::kernels});
  if (has_avx512) tiers.push_back({"avx512", &avx512::kernels});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    tiers.push_back({"avx2", &avx2::kernels});
  }
#elif defined(__aarch64__)
  const bool has_dotprod = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
  constexpr unsigned long bf16_and_i8mm = HWCAP2_BF16 | HWCAP2_I8MM;
  const bool has_both = (getauxval(AT_HWCAP2) & bf16_and_i8mm) == bf16_and_i8mm;
  if (has_dotprod && has_both) tiers.push_back({"neonbf16", &neonbf16::kernels});
  if (has_dotprod) tiers.push_back({"neon", &neon::kernels});
#endif
  tiers.push_back({"portable", &portable::kernels});
  return tiers;
}

std::vector<const Kernels*> compiled_tiers() {
  std::vector<const Kernels*> compiled;
  for (const Tier& tier : processor_tiers()) {
    if (tier.kernels) {
      compiled.push_back(tier.kernels);
    } else if (compiled.empty()) {
      throw std::invalid_argument("the extension was built on another processor, without " +
                                  std::string(tier.name) +
                                  ": `uv sync --reinstall-package tinyllm-kernels` builds it anew");
    }
  }
  return compiled;
}

}  // namespace

const char* fastest_tier() { return processor_tiers().front().name; }

const std::vector<const Kernels*>& tiers() {
  static const std::vector<const Kernels*> compiled = compiled_tiers();
  return compiled;
}

const Kernels& chosen_tier() {
  const char* name = std::getenv("TINYLLM_CPU_ISA");
  if (!name || !*name) return *tiers().front();
  std::string names;
  for (const Kernels* kernels : tiers()) {
    if (std::string(kernels->name) == name) return *kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  throw std::invalid_argument("TINYLLM_CPU_ISA: expected one of " + names + ", got " + name);
}

}  // namespace tinyllm
