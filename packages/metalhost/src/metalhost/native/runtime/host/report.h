// Reports of faults, printed to standard output at the end of the program.
//
// A report is one line of fields separated by tabs: kind, file, line, addresses, other addresses,
// count, message. Its place is either a file and a line, or a list of addresses, innermost first,
// which symbols.py looks up in the debug information. A line of 0 is unknown. In the message,
// {other} stands for the place of the other addresses.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace metalhost {

constexpr int MAX_FRAMES = 8;

// Return addresses of a call chain, as offsets into the program, innermost first.
struct Frames {
  uint32_t count = 0;
  uint64_t offset[MAX_FRAMES];

  // Walks the stack from `pc` outward. `frame` is the frame pointer of the function of `pc`.
  static Frames from(const void* pc, const void* frame);
  // Unwinds the stack of the code at `pc` that a signal interrupted, from within its handler. Also
  // right where a function begins or ends, when its frame pointer is still or again its caller's.
  static Frames interrupted(const void* pc);
  static Frames at(uint32_t offset);
  bool operator==(const Frames& other) const;
};

// Caller of a function. Walking the stack is slow, so `frames` does it only for a report.
struct Caller {
  const void* pc;
  const void* frame;
  Frames frames() const { return Frames::from(pc, frame); }
};

struct Place {
  Site site{"", 0, 0};
  Frames frames{};
};

uint32_t offset_of(const void* pc);

// Adds a report. A report of the same kind and place is counted instead.
[[gnu::format(printf, 4, 5)]] void report(const char* kind, const Place& place, const Frames& other,
                                          const char* message, ...);

// Prints all reports, and "done" if the kernel has finished. Then ends the program.
[[noreturn]] void finish(bool done);

}  // namespace metalhost

// Caller of the function that contains this macro.
#define METALHOST_CALLER                                     \
  ::metalhost::Caller {                                      \
    __builtin_return_address(0),                             \
        *static_cast<void**>(__builtin_frame_address(0)) \
  }
