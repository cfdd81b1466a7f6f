// One launch of a kernel, as launch.py writes it: a header, a record for each buffer, their bytes.
#pragma once
#include <stdint.h>

namespace metalhost {

constexpr uint32_t MAX_THREADS = 1024;  // of a threadgroup: Metal's own limit
constexpr uint32_t MAX_BUFFERS = 64;

enum LaunchFlag : uint32_t {
  CHECKED = 1,           // the kernel is instrumented, so its memory has shadows
  ALLOW_DIVERGENCE = 2,  // simd operations may be reached by some lanes alone
};

struct Launch {
  uint32_t grid[3];
  uint32_t group_size[3];
  uint64_t seed;
  uint32_t flags;
  uint32_t timeout_ms;
  uint32_t threadgroup_limit;  // bytes
  uint32_t buffers;
};

enum BufferFlag : uint32_t { OUTPUT = 1, INITIALISED = 2 };

struct BufferRecord {
  uint64_t offset;  // of its bytes in the file
  uint64_t bytes;
  uint32_t flags;
  uint32_t misalignment;  // bytes past a multiple of 16
  char name[64];
};

// launch.py packs these with Python's struct, without padding.
static_assert(sizeof(Launch) == 48 && sizeof(BufferRecord) == 88);

extern Launch launch;
extern BufferRecord records[MAX_BUFFERS];

// The file is standard input, opened for writing as well: outputs are put back into it.
void read_launch();
void read_bytes(void* to, uint64_t bytes, uint64_t offset);
void write_bytes(const void* from, uint64_t bytes, uint64_t offset);

}  // namespace metalhost
