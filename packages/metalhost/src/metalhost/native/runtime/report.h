// What was found, written to standard output when the program ends.
//
// One record a line, its fields separated by tabs: kind, file, line, addresses, other addresses,
// count, message. A place is either a file and a line (0 if not known) or a list of addresses, the
// innermost first, which symbols.py looks up in the debug information. In the message, {other}
// stands for the place of the other addresses.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace metalhost {

constexpr int MAX_FRAMES = 8;

// The return addresses of a call chain, as offsets into the program, the innermost first.
struct Frames {
  uint32_t count = 0;
  uint64_t offset[MAX_FRAMES];

  // From `pc` outward. `frame` is the frame pointer of the function that `pc` is in.
  static Frames from(const void* pc, const void* frame);
  static Frames at(uint32_t offset);
  bool operator==(const Frames& other) const;
};

// A call, before anyone asked for the whole chain.
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

// Equal kind and place: counted, not repeated.
[[gnu::format(printf, 4, 5)]] void report(const char* kind, const Place& place, const Frames& other,
                                          const char* message, ...);

// Prints all that was reported, and "done" if the kernel came to its end; then leaves the program.
[[noreturn]] void finish(bool done);

}  // namespace metalhost

// The place that called the function in which this stands.
#define METALHOST_CALLER                                     \
  ::metalhost::Caller {                                      \
    __builtin_return_address(0),                             \
        *static_cast<void**>(__builtin_frame_address(0)) \
  }
