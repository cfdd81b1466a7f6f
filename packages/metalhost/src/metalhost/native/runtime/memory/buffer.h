// Buffers of a launch. Guard pages surround each buffer.
#pragma once
#include <stdint.h>

#include "host/launch.h"
#include "memory/shadow.h"

namespace metalhost {

struct Buffer {
  const BufferRecord* record;
  char *map, *map_end;  // mapping, with guard pages
  char *begin, *end;    // contents
  Shadow* shadow;       // one for each byte of an output in a checked launch, otherwise null
  uint32_t last_write;  // program counter of the last write, as an offset into the program

  bool is_output() const { return record->flags & OUTPUT; }
  bool is_in_mapping(const void* p) const { return p >= map && p < map_end; }
};

extern Buffer buffers[MAX_BUFFERS];
extern void* buffer_addresses[MAX_BUFFERS];  // arguments of kernel_entry

void map_buffers();

// Returns the buffer that contains an address or has it in its guard pages. Returns null if there
// is none.
Buffer* buffer_at(const void* address);

// Reports outputs with bytes that were never written. Outputs with an initial value are exempt.
void report_unwritten();

void write_outputs();

}  // namespace metalhost
