// Sums and maxima over the threads of a group, whose first axis is the only one.
#include <metal_stdlib>
using namespace metal;

// The sum of `value` over the group, for every thread. Each simdgroup sums its lanes, then all
// simdgroups sum what the others found: one barrier, and no second one to hand the result round.
inline float group_sum(float value, threadgroup float* partial, uint lane, uint simdgroup,
                       uint simdgroups) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
}

// The largest `value` of the group, likewise.
inline float group_max(float value, threadgroup float* partial, uint lane, uint simdgroup,
                       uint simdgroups) {
  const float top = simd_max(value);
  if (lane == 0) {
    partial[simdgroup] = top;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_max(lane < simdgroups ? partial[lane] : -INFINITY);
}
