#include "memory/threadgroup_memory.h"

#include <stdlib.h>

#include "host/launch.h"
#include "host/report.h"

namespace metalhost {
namespace {

// More than a device has, so that a kernel over the limit still runs.
constexpr uint32_t CAPACITY = 256 << 10;
constexpr uint32_t GAP = 64;  // bytes between variables, in which an access is out of bounds
constexpr uint32_t MAX_VARIABLES = 256;

alignas(4096) char memory[CAPACITY];
Shadow shadows[CAPACITY];  // zero pages until a checked launch writes them
Variable variables[MAX_VARIABLES];
uint32_t declared;  // number of variables
uint32_t used;      // bytes, with gaps
uint32_t total;     // bytes, without gaps
uint32_t dirty = CAPACITY;  // bytes that earlier groups may have written

}  // namespace

void reset_threadgroup_memory() {
  if (used > dirty) dirty = used;
  poison(memory, dirty);
  dirty = declared = used = total = 0;
}

bool in_threadgroup_memory(const void* address) {
  return address >= memory && address < memory + CAPACITY;
}

uint32_t threadgroup_offset(const void* address) {
  return uint32_t(static_cast<const char*>(address) - memory);
}

const Variable* variable_containing(uint32_t offset, uint32_t bytes) {
  const Variable* v = variable_before(offset);
  return v && offset + bytes <= v->offset + v->bytes ? v : nullptr;
}

const Variable* variable_before(uint32_t offset) {
  const Variable* last = nullptr;
  for (uint32_t i = 0; i < declared && variables[i].offset <= offset; ++i) last = &variables[i];
  return last;
}

Shadow& threadgroup_shadow(uint32_t offset) { return shadows[offset]; }

void* threadgroup_variable(int id, uint32_t bytes, uint32_t alignment, const char* name,
                           Site site) {
  for (uint32_t i = 0; i < declared; ++i) {
    if (variables[i].id == id) return memory + variables[i].offset;
  }
  if (alignment < 16) alignment = 16;
  uint32_t offset = (used + GAP + alignment - 1) / alignment * alignment;
  total += bytes;
  bool fits = offset + uint64_t(bytes) + GAP <= CAPACITY && declared < MAX_VARIABLES;
  if (total > launch.threadgroup_limit) {
    report("threadgroup-limit", {.site = site}, {},
           "threadgroup memory of %u bytes up to '%s': a device has %u", total, name,
           launch.threadgroup_limit);
  } else if (!fits) {
    report("threadgroup-limit", {.site = site}, {},
           "'%s' does not fit: metalhost supports %u threadgroup variables of %u bytes in total",
           name, MAX_VARIABLES, CAPACITY);
  }
  if (!fits) finish(false);
  variables[declared++] = {id, offset, bytes, name};
  used = offset + bytes;
  return memory + offset;
}

}  // namespace metalhost
