#include "host/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

#include "fibers/fiber.h"

extern "C" const char __executable_start[];  // from the linker
extern "C" const char etext[];

namespace metalhost {
namespace {

constexpr int MAX_REPORTS = 32;
constexpr int MESSAGE_BYTES = 320;
#if defined(__x86_64__)
constexpr int FRAME_POINTER = 6;  // in DWARF's numbers of registers
#else
constexpr int FRAME_POINTER = 29;
#endif

struct Report {
  const char* kind;
  Place place;
  Frames other;
  uint64_t count;
  char message[MESSAGE_BYTES];
};

Report reports[MAX_REPORTS];
int report_count = 0;

bool in_program(const void* pc) { return pc >= __executable_start && pc < etext; }

bool is_same(const Report& report, const char* kind, const Place& place) {
  return report.kind == kind && report.place.site == place.site &&
         report.place.frames == place.frames;
}

struct Unwinding {
  const void* pc;  // of the interrupted code; the handler's own frames lie before it
  Frames frames{};
  bool found = false;
};

_Unwind_Reason_Code add_frame(_Unwind_Context* context, void* argument) {
  Unwinding& unwinding = *static_cast<Unwinding*>(argument);
  const char* pc = reinterpret_cast<const char*>(_Unwind_GetIP(context));
  bool is_return = unwinding.found;
  unwinding.found |= pc == unwinding.pc;
  if (!unwinding.found) return _URC_NO_REASON;
  Frames& frames = unwinding.frames;
  // symbols.py looks up the byte before each address, as if all were return addresses. Functions of
  // the C library are left out.
  if (in_program(pc)) frames.offset[frames.count++] = offset_of(is_return ? pc : pc + 1);
  // The frame pointer is null in the outermost function, and garbage if the kernel overwrote it.
  const void* frame = reinterpret_cast<const void*>(_Unwind_GetGR(context, FRAME_POINTER));
  bool last = frames.count == MAX_FRAMES || (in_program(pc) && !on_fiber_stack(frame));
  return last ? _URC_END_OF_STACK : _URC_NO_REASON;
}

void print(const Frames& frames) {
  for (uint32_t i = 0; i < frames.count; ++i) {
    printf("%s%llx", i ? "," : "", static_cast<unsigned long long>(frames.offset[i]));
  }
}

}  // namespace

uint32_t offset_of(const void* pc) {
  return in_program(pc) ? uint32_t(static_cast<const char*>(pc) - __executable_start) : 0;
}

Frames Frames::at(uint32_t offset) {
  Frames frames;
  if (offset) frames.offset[frames.count++] = offset;
  return frames;
}

bool Frames::operator==(const Frames& other) const {
  return count == other.count && memcmp(offset, other.offset, count * sizeof *offset) == 0;
}

Frames Frames::from(const void* pc, const void* frame) {
  Frames frames;
  while (frames.count < MAX_FRAMES && in_program(pc)) {
    frames.offset[frames.count++] = offset_of(pc);
    // A frame holds the frame pointer of the caller and the return address, on both processors.
    if (!on_fiber_stack(frame) || uintptr_t(frame) % sizeof(void*)) break;
    const void* const* caller = static_cast<const void* const*>(frame);
    if (caller[0] <= frame) break;
    frame = caller[0], pc = caller[1];
  }
  return frames;
}

Frames Frames::interrupted(const void* pc) {
  Unwinding unwinding{.pc = pc};
  _Unwind_Backtrace(add_frame, &unwinding);
  return unwinding.frames;
}

void report(const char* kind, const Place& place, const Frames& other, const char* message, ...) {
  for (int i = 0; i < report_count; ++i) {
    if (is_same(reports[i], kind, place)) {
      ++reports[i].count;
      return;
    }
  }
  if (report_count == MAX_REPORTS) --report_count;  // the last report says why the run ends
  Report& added = reports[report_count++];
  added = {kind, place, other, 1, {}};
  va_list arguments;
  va_start(arguments, message);
  vsnprintf(added.message, MESSAGE_BYTES, message, arguments);
  va_end(arguments);
}

void finish(bool done) {
  for (int i = 0; i < report_count; ++i) {
    const Report& r = reports[i];
    printf("%s\t%s\t%d\t", r.kind, r.place.site.file, r.place.site.line);
    print(r.place.frames);
    putchar('\t');
    print(r.other);
    printf("\t%llu\t%s\n", static_cast<unsigned long long>(r.count), r.message);
  }
  if (done) puts("done");
  fflush(stdout);
  _exit(done ? 0 : 1);
}

}  // namespace metalhost
