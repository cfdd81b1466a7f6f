// Memory for the intermediate results of forward passes, reused by all layers and passes.
//
// `malloc` returns blocks of some megabytes to the system and gets other pages for the next layer.
// Linux clears each of those pages at its first use.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

namespace tinyllm {

// A stack of blocks of memory, for one thread.
//
// Blocks may be released in any order. The memory of a block is reused as soon as all later blocks
// are released too. If a range of memory is full, another one is added. After the last block of a
// pass is released, several ranges are replaced by one that has room for the whole pass. A range
// much larger than recent passes is freed, so that decoding does not hold the memory of a prompt.
class Arena {
 public:
  // The arena of the calling thread.
  static Arena& of_this_thread();

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns `bytes` of uninitialized memory at a multiple of 64. Throws std::bad_alloc.
  void* allocate(size_t bytes);

  // Releases a block of this arena.
  void release(void* block);

  // Bytes of all ranges.
  size_t capacity() const;

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  struct Range {
    std::unique_ptr<char[], Free> memory;
    size_t size;
    size_t used = 0;  // bytes of all blocks up to the last one that is not released
    size_t last = 0;  // offset of the last block
  };

  void add_range(size_t bytes);
  void end_pass();

  std::vector<Range> ranges_;  // new blocks are placed in the last one
  size_t blocks_ = 0;          // blocks that are not released
  size_t used_ = 0;            // bytes used in all ranges
  size_t peak_ = 0;            // the most bytes used in this pass
  size_t recent_peak_ = 0;     // the most bytes used in recent passes
};

}  // namespace tinyllm
