#include "dispatch/kernels.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tinyllm {

namespace portable {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512vnni {
extern const Kernels kernels;
}
namespace avx512bf16 {
extern const Kernels kernels;
}
namespace amx {
extern const Kernels kernels;
}
namespace neon {
extern const Kernels kernels;
}
namespace neonbf16 {
extern const Kernels kernels;
}

namespace {

#if defined(__x86_64__)
// Whether there is AMX for bfloat16, and the system lets this process have the registers of its
// tiles. Linux wants to be asked, once for all threads, because these make what it saves of a thread
// three times as large; one that does not know of them, or does not want to, refuses.
bool may_use_tiles() {
  constexpr unsigned bfloat16 = 1u << 22, tiles = 1u << 24;  // in EDX of leaf 7
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (!(edx & bfloat16) || !(edx & tiles)) return false;
  constexpr long ask_for_permission = 0x1023, registers_of_tiles = 18;
  return syscall(SYS_arch_prctl, ask_for_permission, registers_of_tiles) == 0;
}
#endif

std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  bool integers = wide && __builtin_cpu_supports("avx512vnni");
  bool pairs = integers && __builtin_cpu_supports("avx512bf16");
  if (pairs && may_use_tiles()) found.push_back(&amx::kernels);
  // AMD multiplies bfloat16 at twice the rate of floats; Intel at half, so that it stays out there.
  if (pairs && __builtin_cpu_is("amd")) found.push_back(&avx512bf16::kernels);
  if (integers) found.push_back(&avx512vnni::kernels);
  if (wide) found.push_back(&avx512::kernels);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    found.push_back(&avx2::kernels);
  }
#elif defined(__aarch64__)
  const bool integers = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
  constexpr unsigned long both = HWCAP2_BF16 | HWCAP2_I8MM;
  if (integers && (getauxval(AT_HWCAP2) & both) == both) found.push_back(&neonbf16::kernels);
  if (integers) found.push_back(&neon::kernels);
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
