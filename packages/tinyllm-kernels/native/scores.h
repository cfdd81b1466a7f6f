// Stretches of a row of scores, of which a vocabulary has 150,000: the best of them, and their sum.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

struct Scored {
  float score;
  int32_t index;
};

// Whether a ranks before b: the larger score, of equal ones the first. What is no number comes last.
inline bool before(const Scored& a, const Scored& b) {
  const bool a_counts = a.score == a.score, b_counts = b.score == b.score;
  if (a_counts != b_counts) return a_counts;
  if (a_counts && a.score != b.score) return a.score > b.score;
  return a.index < b.index;
}

// The sum of e^(x - largest).
struct ExpSum {
  float largest, sum;
};

}  // namespace tinyllm
