// Launch of a kernel: sizes, settings and buffers, read from the file that launch.py writes.
//
// The file holds a header, a record for each buffer, and the bytes of the buffers.
#pragma once
#include <stdint.h>

namespace metalhost {

constexpr uint32_t MAX_THREADS = 1024;  // of a threadgroup, the limit of Metal
constexpr uint32_t MAX_BUFFERS = 31;    // of a kernel, the limit of Metal, which kernel.py checks

enum LaunchFlag : uint32_t {
  CHECKED = 1,           // the kernel is instrumented, and its memory has shadows
  ALLOW_DIVERGENCE = 2,  // some lanes of a simdgroup may run simd operations without the others
};

struct Launch {
  uint32_t grid[3];        // threads
  uint32_t group_size[3];  // threads
  uint64_t seed;
  uint32_t flags;
  uint32_t timeout_ms;
  uint32_t threadgroup_limit;  // bytes
  uint32_t buffers;            // number of buffers
};

enum BufferFlag : uint32_t { OUTPUT = 1, INITIALIZED = 2 };

struct BufferRecord {
  uint64_t offset;  // of the buffer's bytes in the file
  uint64_t bytes;
  uint32_t flags;
  uint32_t misalignment;  // offset of the address from a multiple of 16, in bytes
  char name[64];
};

// launch.py packs both structures with Python's struct, without padding.
static_assert(sizeof(Launch) == 48 && sizeof(BufferRecord) == 88);

extern Launch launch;
extern BufferRecord records[MAX_BUFFERS];

// The file is standard input. It is open for writing too, because outputs are written back.
void read_launch();
void read_bytes(void* to, uint64_t bytes, uint64_t offset);
void write_bytes(const void* from, uint64_t bytes, uint64_t offset);

}  // namespace metalhost
