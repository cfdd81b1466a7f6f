// The permission to use the tile registers of AMX.
#pragma once

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tinyllm {

// Asks Linux for the tile registers of AMX. They triple the state that Linux saves for a thread, so
// a process has to request them, once for all its threads. Returns false if the processor lacks AMX
// for bfloat16 and bytes, or Linux refuses.
inline bool request_tile_registers() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, amx_int8 = 1u << 25;
  constexpr unsigned needed = amx_bf16 | amx_tile | amx_int8;  // in EDX of leaf 7
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if ((edx & needed) != needed) return false;
  constexpr long arch_req_xcomp_perm = 0x1023, xtile_data = 18;
  return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xtile_data) == 0;
}

}  // namespace tinyllm
