// The tokens of a sequence, cut into segments.
#pragma once

#include <algorithm>

#include "recurrent/tasks.h"

namespace tinyllm::TINYLLM_ISA {

// Tokens of a segment, at most. Their queries and keys stay in the first-level cache (32 KB for heads
// of 128) while all rows of a state pass over them.
inline constexpr int64_t kSegmentTokens = 32;

// A slot of the state array, or -1.
inline int64_t slot_or_none(int32_t slot, const StateSlots& slots) {
  return slot >= 0 && slot < slots.slots ? slot : -1;
}

// The tokens `first` to `last` of a sequence, and the slot of its state.
struct SequenceTokens {
  SequenceTokens(const StateSlots& slots, int64_t index)
      : first(std::clamp<int64_t>(slots.cu_seqlens[index], 0, slots.tokens)),
        last(std::clamp<int64_t>(slots.cu_seqlens[index + 1], first, slots.tokens)),
        load(slot_or_none(slots.loads[index], slots)) {}

  int64_t first, last;
  int64_t load;  // or -1
};

// Tokens `first` to `last`. Only the state after the last one is saved.
struct Segment {
  int64_t count() const { return last - first; }

  int64_t first, last;
  int64_t save;    // a slot, or -1
  bool is_at_end;  // no token of the sequence follows
};

// Calls `work(segment)` for the segments of a sequence in their order.
template <typename Work>
void for_each_segment(const StateSlots& slots, const SequenceTokens& tokens, Work work) {
  for (int64_t first = tokens.first, last; first < tokens.last; first = last) {
    const int64_t end = std::min(first + kSegmentTokens, tokens.last);
    int64_t save = -1;
    for (last = first; last < end && save < 0; ++last) save = slot_or_none(slots.saves[last], slots);
    work(Segment{first, last, save, last == tokens.last});
  }
}

}  // namespace tinyllm::TINYLLM_ISA
