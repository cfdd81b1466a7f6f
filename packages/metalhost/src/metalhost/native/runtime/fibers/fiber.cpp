#include "fibers/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
asm(R"(
.text
.globl metalhost_switch
.type metalhost_switch, @function
metalhost_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size metalhost_switch, .-metalhost_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl metalhost_switch
.type metalhost_switch, %function
metalhost_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size metalhost_switch, .-metalhost_switch
)");
#else
#error "metalhost runs on x86-64 and AArch64"
#endif

namespace metalhost {
namespace {

constexpr uintptr_t STACK = 256 << 10;
constexpr uintptr_t GUARD = 64 << 10;  // a multiple of every page size in use

char* stacks;
uintptr_t mapped;  // bytes

}  // namespace

void map_stacks(uint32_t count) {
  mapped = count * STACK;
  void* map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    perror("mapping the stacks");
    exit(2);
  }
  stacks = static_cast<char*>(map);
  for (uint32_t i = 0; i < count; ++i) mprotect(stacks + i * STACK, GUARD, PROT_NONE);
}

bool on_fiber_stack(const void* address) {
  return uintptr_t(address) - uintptr_t(stacks) < mapped && !on_guard_page(address);
}

bool on_guard_page(const void* address) {
  uintptr_t offset = uintptr_t(address) - uintptr_t(stacks);
  return offset < mapped && offset % STACK < GUARD;
}

void* fresh_stack(uint32_t index, void (*entry)()) {
  // Neighboring stacks start in different cache sets. The saved frame pointer is null, which ends
  // backtraces.
  char* top = stacks + (index + 1) * STACK - 64 - (index % 8) * 64;
#if defined(__x86_64__)
  void** saved = reinterpret_cast<void**>(top) - 8;  // six registers, return address, padding
  memset(saved, 0, 8 * sizeof *saved);
  saved[6] = reinterpret_cast<void*>(entry);
#else
  void** saved = reinterpret_cast<void**>(top) - 20;
  memset(saved, 0, 20 * sizeof *saved);
  saved[11] = reinterpret_cast<void*>(entry);  // x30, the address that `ret` jumps to
#endif
  return saved;
}

}  // namespace metalhost
