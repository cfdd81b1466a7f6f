// softmax(q k^T * scale + mask) v, by groups of heads.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

struct AttentionTask {
  const void* q;  // B H L D
  const void* k;  // B Hkv S D
  const void* v;  // B Hkv S D
  void* y;        // B H L D, without gaps
  int64_t q_strides[3], k_strides[3], v_strides[3];  // of all axes but the last, in numbers
  int64_t heads, kv_heads, length, keys, dim;
  float scale;
  bool causal;            // key j is seen by query i where j <= i + S - L
  const void* mask;       // added to the scores, or null
  int64_t mask_strides[4];  // of B H L S; 0 where it is broadcast
  Type mask_type;
  Type type;  // of q, k, v and y
};

}  // namespace tinyllm
