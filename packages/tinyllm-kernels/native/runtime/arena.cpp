#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "ceil_div.h"

namespace tinyllm {
namespace {

constexpr size_t kLine = 64, kSmallUnit = 64 << 10, kHugePage = 2 << 20;

// The passes in which `recent_peak_` falls to a third, if all are small. A token has about five.
constexpr size_t kRecentPasses = 1024;

// The cache line before each block.
struct alignas(kLine) Header {
  size_t range;     // index of the range
  size_t bytes;     // of header and block
  size_t previous;  // offset of the block before
  bool is_released;
};

Header* header_at(char* memory, size_t offset) {
  return reinterpret_cast<Header*>(memory + offset);
}

}  // namespace

Arena& Arena::of_this_thread() {
  thread_local Arena arena;
  return arena;
}

void* Arena::allocate(size_t bytes) {
  const size_t needed = sizeof(Header) + round_up(bytes, kLine);
  if (ranges_.empty() || ranges_.back().size - ranges_.back().used < needed) add_range(needed);
  Range& range = ranges_.back();
  const size_t offset = range.used;
  Header* header = new (range.memory.get() + offset)
      Header{ranges_.size() - 1, needed, range.last, false};
  range.last = offset;
  range.used += needed;
  ++blocks_;
  used_ += needed;
  peak_ = std::max(peak_, used_);
  return header + 1;
}

void Arena::release(void* block) {
  Header* released = static_cast<Header*>(block) - 1;
  released->is_released = true;
  Range& range = ranges_[released->range];
  while (range.used > 0) {
    const Header* last = header_at(range.memory.get(), range.last);
    if (!last->is_released) break;
    range.used = range.last;
    range.last = last->previous;
    used_ -= last->bytes;
  }
  if (--blocks_ == 0) end_pass();
}

size_t Arena::capacity() const {
  size_t bytes = 0;
  for (const Range& range : ranges_) bytes += range.size;
  return bytes;
}

// Adds a range for a block of `bytes`.
void Arena::add_range(size_t bytes) {
  while (!ranges_.empty() && ranges_.back().used == 0) ranges_.pop_back();
  // Twice the memory each time, so that a first pass adds few ranges.
  bytes = std::max(bytes, ranges_.empty() ? recent_peak_ : capacity());
  const size_t unit = bytes < kHugePage / 2 ? kSmallUnit : kHugePage;
  const size_t size = round_up(bytes, unit);
  char* memory = static_cast<char*>(std::aligned_alloc(unit, size));
  if (!memory) throw std::bad_alloc();
  std::unique_ptr<char[], Free> owned(memory);
  if (unit == kHugePage) madvise(memory, size, MADV_HUGEPAGE);
  ranges_.push_back({std::move(owned), size});
}

void Arena::end_pass() {
  recent_peak_ = std::max(peak_, recent_peak_ - recent_peak_ / kRecentPasses);
  peak_ = 0;
  if (ranges_.size() > 1 || capacity() > 2 * recent_peak_ + kHugePage) ranges_.clear();
}

}  // namespace tinyllm
