// The floating-point mode of a thread.
//
// A host process may set DAZ and FTZ (subnormal numbers count as zero) or another rounding, and new
// threads inherit the mode of their creator. Results would then depend on the host. So tasks are
// computed in the default mode: rounding to the nearest, and subnormal numbers as they are.
#pragma once

#include <cstdint>

namespace tinyllm {

// Sets the default mode of the calling thread for the lifetime of this object.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : previous_(read()) {
    if ((previous_ & kControlBits) != kDefault) write((previous_ & ~kControlBits) | kDefault);
  }
  ~DefaultFloatMode() {
    if ((previous_ & kControlBits) != kDefault) write(previous_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = uint32_t;
  static constexpr Mode kControlBits = 0xffc0, kDefault = 0x1f80;  // MXCSR; exceptions are masked
  static Mode read() { return __builtin_ia32_stmxcsr(); }
  static void write(Mode mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
  using Mode = uint64_t;
  // Of FPCR: FIZ, AH, FZ16, the rounding mode, FZ and DN.
  static constexpr Mode kControlBits = 3 | 1 << 19 | 3 << 22 | 1 << 24 | 1 << 25, kDefault = 0;
  static Mode read() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Mode mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
#else
  using Mode = int;
  static constexpr Mode kControlBits = 0, kDefault = 0;
  static Mode read() { return 0; }
  static void write(Mode) {}
#endif

  Mode previous_;
};

}  // namespace tinyllm
