#include "memory/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "host/report.h"

namespace metalhost {

Buffer buffers[MAX_BUFFERS];
void* buffer_addresses[MAX_BUFFERS];

namespace {

constexpr uint64_t PAGE = 64 << 10;  // a multiple of every page size in use
constexpr uint64_t GUARD = 16 << 20;  // wide, because a wrong index is often far out of bounds
constexpr uint64_t ALIGNMENT = 16;    // the alignment that a kernel may assume

void* reserve(uint64_t bytes, int protection) {
  void* memory =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mapping a buffer");
    exit(2);
  }
  return memory;
}

void map(Buffer& b, const BufferRecord& record) {
  uint64_t pages = (record.bytes + 2 * ALIGNMENT + PAGE - 1) / PAGE * PAGE;
  b.record = &record;
  b.map = static_cast<char*>(reserve(pages + 2 * GUARD, PROT_NONE));
  b.map_end = b.map + pages + 2 * GUARD;
  char* inner = b.map + GUARD;
  mprotect(inner, pages, PROT_READ | PROT_WRITE);
  poison(inner, pages);

  // The buffer is at the end of the pages, so that a read past its end traps. The alignment leaves
  // a gap of up to 15 bytes.
  uint64_t last = uint64_t(inner) + pages - record.bytes - record.misalignment;
  b.begin = reinterpret_cast<char*>(last / ALIGNMENT * ALIGNMENT + record.misalignment);
  b.end = b.begin + record.bytes;

  if (!b.is_output() || (record.flags & INITIALIZED)) {
    read_bytes(b.begin, record.bytes, record.offset);
  }
  if (!b.is_output()) mprotect(inner, pages, PROT_READ);
  if (b.is_output() && (launch.flags & CHECKED)) {
    uint64_t bytes = (record.bytes + 1) * sizeof(Shadow);
    b.shadow = static_cast<Shadow*>(reserve(bytes, PROT_READ | PROT_WRITE));
  }
}

}  // namespace

void map_buffers() {
  for (uint32_t i = 0; i < launch.buffers; ++i) {
    map(buffers[i], records[i]);
    buffer_addresses[i] = buffers[i].begin;
  }
}

Buffer* buffer_at(const void* address) {
  for (uint32_t i = 0; i < launch.buffers; ++i) {
    if (buffers[i].is_in_mapping(address)) return &buffers[i];
  }
  return nullptr;
}

void report_unwritten() {
  for (uint32_t i = 0; i < launch.buffers; ++i) {
    const Buffer& b = buffers[i];
    if (!b.shadow || (b.record->flags & INITIALIZED)) continue;
    uint64_t missing = 0, first = 0;
    for (uint64_t k = b.record->bytes; k-- > 0;) {
      if (!b.shadow[k].written()) ++missing, first = k;
    }
    if (!missing) continue;
    const char* here = b.last_write ? ", which is written here," : "";
    report("unwritten-output", {.frames = Frames::at(b.last_write)}, {},
           "%llu of the %llu bytes of output '%s'%s were never written, the first at byte %llu",
           static_cast<unsigned long long>(missing),
           static_cast<unsigned long long>(b.record->bytes), b.record->name, here,
           static_cast<unsigned long long>(first));
  }
}

void write_outputs() {
  for (uint32_t i = 0; i < launch.buffers; ++i) {
    const Buffer& b = buffers[i];
    if (b.is_output()) write_bytes(b.begin, b.record->bytes, b.record->offset);
  }
}

}  // namespace metalhost
