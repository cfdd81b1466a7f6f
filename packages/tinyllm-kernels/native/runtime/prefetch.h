// What a thread will read when the next task begins, which it may ask memory for while it waits.
//
// Between two products a few microseconds go by in which one thread normalizes a row and the others
// wait. That is as long as reading 100 KB takes, and memory would rest.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace tinyllm {

struct Stretch {
  const char* begin;
  int64_t bytes;
};

// A few stretches of memory, in the order in which they will be read.
class Upcoming {
 public:
  // Of what is more than `kMost` in all nothing is kept: it belongs into a second-level cache.
  void add(const void* begin, int64_t bytes) {
    const char* from = static_cast<const char*>(begin);
    bytes = std::min(bytes, kMost - total_);
    if (bytes <= 0) return;
    for (int i = 0; i < count_; ++i) {
      Stretch& other = stretches_[i];
      if (other.begin + other.bytes != from) continue;
      other.bytes += bytes, total_ += bytes;
      return;
    }
    if (count_ == kStretches) return;
    stretches_[count_++] = {from, bytes};
    total_ += bytes;
  }

  bool is_full() const { return total_ == kMost; }
  int count() const { return count_; }
  const Stretch& operator[](int i) const { return stretches_[i]; }

 private:
  static constexpr int64_t kMost = 256 << 10;
  static constexpr int kStretches = 8;

  std::array<Stretch, kStretches> stretches_{};
  int count_ = 0;
  int64_t total_ = 0;
};

// Asks memory for what is upcoming, little by little.
class ReadAhead {
 public:
  ReadAhead() = default;
  explicit ReadAhead(const Upcoming& upcoming) : upcoming_(upcoming) {}

  // The next few cache lines. False if nothing is left.
  bool step() {
    if (index_ == upcoming_.count()) return false;
    const Stretch& stretch = upcoming_[index_];
    for (int i = 0; i < kLines && at_ < stretch.bytes; ++i, at_ += kLine) {
      __builtin_prefetch(stretch.begin + at_, 0, 2);  // never a fault, whatever has become of it
    }
    if (at_ >= stretch.bytes) ++index_, at_ = 0;
    return true;
  }

 private:
  static constexpr int kLines = 4, kLine = 64;

  Upcoming upcoming_;
  int index_ = 0;
  int64_t at_ = 0;
};

}  // namespace tinyllm
