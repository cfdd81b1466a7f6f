// Prefetching during the gap between two tasks.
//
// Between two matrix products one thread normalizes a row while the other threads wait, for some
// microseconds. Memory delivers about 100 KB in that time. A waiting thread uses it to prefetch the
// memory that it reads first in the next product.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace tinyllm {

struct MemoryRange {
  const char* begin;
  int64_t bytes;
};

// Memory that a thread will read soon: up to 8 ranges, 256 KB in total, in the order of reading.
// More than that would not fit into a second-level cache.
class PrefetchList {
 public:
  // Appends a range, or extends the range that ends at `begin`. Bytes beyond the limit are dropped.
  void add(const void* begin, int64_t bytes) {
    const char* from = static_cast<const char*>(begin);
    bytes = std::min(bytes, kMaxBytes - total_);
    if (bytes <= 0) return;
    for (int i = 0; i < count_; ++i) {
      MemoryRange& range = ranges_[i];
      if (range.begin + range.bytes != from) continue;
      range.bytes += bytes;
      total_ += bytes;
      return;
    }
    if (count_ == kMaxRanges) return;
    ranges_[count_++] = {from, bytes};
    total_ += bytes;
  }

  bool is_full() const { return total_ == kMaxBytes; }
  int count() const { return count_; }
  const MemoryRange& operator[](int i) const { return ranges_[i]; }

 private:
  static constexpr int64_t kMaxBytes = 256 << 10;
  static constexpr int kMaxRanges = 8;

  std::array<MemoryRange, kMaxRanges> ranges_{};
  int count_ = 0;
  int64_t total_ = 0;
};

// Prefetches the ranges of a list in small steps, so that the thread can watch for its next task.
class Prefetcher {
 public:
  Prefetcher() = default;
  explicit Prefetcher(const PrefetchList& list) : list_(list) {}

  // Prefetches the next 4 cache lines. Returns false at the end of the list.
  bool step() {
    if (index_ == list_.count()) return false;
    const MemoryRange& range = list_[index_];
    for (int i = 0; i < kLinesPerStep && offset_ < range.bytes; ++i, offset_ += kLineBytes) {
      // A prefetch of memory that has been freed meanwhile is ignored by the processor.
      __builtin_prefetch(range.begin + offset_, 0, 2);
    }
    if (offset_ >= range.bytes) ++index_, offset_ = 0;
    return true;
  }

 private:
  static constexpr int kLinesPerStep = 4, kLineBytes = 64;

  PrefetchList list_;
  int index_ = 0;
  int64_t offset_ = 0;
};

}  // namespace tinyllm
