#include "host/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

namespace metalhost {

Launch launch;
BufferRecord records[MAX_BUFFERS];

namespace {

[[noreturn]] void fail(const char* action) {
  perror(action);
  exit(2);
}

}  // namespace

void read_bytes(void* to, uint64_t bytes, uint64_t offset) {
  char* p = static_cast<char*>(to);
  while (bytes) {
    ssize_t n = pread(STDIN_FILENO, p, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("reading the launch");
    p += n, bytes -= uint64_t(n), offset += uint64_t(n);
  }
}

void write_bytes(const void* from, uint64_t bytes, uint64_t offset) {
  const char* p = static_cast<const char*>(from);
  while (bytes) {
    ssize_t n = pwrite(STDIN_FILENO, p, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("writing the outputs");
    p += n, bytes -= uint64_t(n), offset += uint64_t(n);
  }
}

void read_launch() {
  read_bytes(&launch, sizeof launch, 0);
  read_bytes(records, launch.buffers * sizeof(BufferRecord), sizeof launch);
}

}  // namespace metalhost
