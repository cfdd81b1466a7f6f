// The instruction sets of this machine, and the choice among their kernel tables.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "dispatch/kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "dispatch/tile_permission.h"
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tinyllm {

// A build may leave an instruction set out. The address of its weak table is then null.
#define DECLARE_TABLE(name)                               \
  namespace name {                                        \
  extern const KernelTable kernels __attribute__((weak)); \
  }
DECLARE_TABLE(portable)
#if defined(__x86_64__)
DECLARE_TABLE(avx2)
DECLARE_TABLE(avxvnni)
DECLARE_TABLE(avx512)
DECLARE_TABLE(avx512vnni)
DECLARE_TABLE(avx512bf16)
DECLARE_TABLE(amx)
#elif defined(__aarch64__)
DECLARE_TABLE(neon)
DECLARE_TABLE(neonbf16)
#endif

namespace {

struct InstructionSet {
  const char* name;
  const KernelTable* kernels;  // null if the build left the instruction set out
};

#if defined(__x86_64__)
// True if the processor converts float16. A virtual machine may hide this beside AVX2.
bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx >> 29 & 1);
}

// True if the processor has AVX-VNNI. `__builtin_cpu_supports` of clang 16 does not know the name.
bool has_avx_vnni() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
#endif

// Returns the instruction sets of the processor, the fastest first.
std::vector<InstructionSet> instruction_sets_of_processor() {
  std::vector<InstructionSet> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512vnni");
  // Only Cooper Lake has AVX512_BF16 without AVX512_VBMI.
  const bool has_bf16 =
      has_vnni && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  if (has_bf16 && request_tile_registers()) found.push_back({"amx", &amx::kernels});
  // AMD multiplies bfloat16 at twice the rate of floats, Intel at half the rate.
  if (has_bf16 && __builtin_cpu_is("amd")) {
    found.push_back({"avx512bf16", &avx512bf16::kernels});
  }
  if (has_vnni) found.push_back({"avx512vnni", &avx512vnni::kernels});
  if (has_avx512) found.push_back({"avx512", &avx512::kernels});
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (has_avx2 && has_avx_vnni()) found.push_back({"avxvnni", &avxvnni::kernels});
  if (has_avx2) found.push_back({"avx2", &avx2::kernels});
#elif defined(__aarch64__)
  const bool has_dotprod = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
  constexpr unsigned long bf16_and_i8mm = HWCAP2_BF16 | HWCAP2_I8MM;
  const bool has_both = (getauxval(AT_HWCAP2) & bf16_and_i8mm) == bf16_and_i8mm;
  if (has_dotprod && has_both) found.push_back({"neonbf16", &neonbf16::kernels});
  if (has_dotprod) found.push_back({"neon", &neon::kernels});
#endif
  found.push_back({"portable", &portable::kernels});
  return found;
}

std::vector<const KernelTable*> compiled_tables() {
  std::vector<const KernelTable*> compiled;
  for (const InstructionSet& set : instruction_sets_of_processor()) {
    if (set.kernels) {
      compiled.push_back(set.kernels);
    } else if (compiled.empty()) {
      throw std::invalid_argument("the extension was built on another processor, without " +
                                  std::string(set.name) +
                                  ": `uv sync --reinstall-package tinyllm-kernels` builds it anew");
    }
  }
  return compiled;
}

}  // namespace

const char* fastest_instruction_set() { return instruction_sets_of_processor().front().name; }

const std::vector<const KernelTable*>& kernel_tables() {
  static const std::vector<const KernelTable*> compiled = compiled_tables();
  return compiled;
}

const KernelTable& chosen_kernels() {
  const char* name = std::getenv("TINYLLM_CPU_ISA");
  if (!name || !*name) return *kernel_tables().front();
  std::string names;
  for (const KernelTable* kernels : kernel_tables()) {
    if (std::string(kernels->name) == name) return *kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  throw std::invalid_argument("TINYLLM_CPU_ISA: expected one of " + names + ", got " + name);
}

}  // namespace tinyllm
