// The arrays of a launch, each between guard pages.
#pragma once
#include <stdint.h>

#include "access_set.h"
#include "launch.h"

namespace metalhost {

struct Buffer {
  const BufferRecord* record;
  char *map, *map_end;  // guard pages included
  char *begin, *end;    // the array
  Shadow* shadow;       // one for each byte of an output of a checked launch
  uint32_t last_write;  // where it was last written, as an offset into the program

  bool is_output() const { return record->flags & OUTPUT; }
  bool holds(const void* p) const { return p >= map && p < map_end; }
};

extern Buffer buffers[MAX_BUFFERS];
extern void* buffer_addresses[MAX_BUFFERS];  // as the kernel takes them

void map_buffers();

// The buffer in or around which an address lies; null if there is none.
Buffer* buffer_at(const void* address);

// A kernel must write all bytes of its outputs, unless they had a value before.
void report_unwritten();

void write_outputs();

}  // namespace metalhost
