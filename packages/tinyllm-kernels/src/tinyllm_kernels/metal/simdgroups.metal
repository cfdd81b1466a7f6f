// Sums and maxima over the threads of a threadgroup with one axis.
#include <metal_stdlib>
using namespace metal;

// Returns the sum of `value` over the group to every thread. Each simdgroup sums its lanes. Then
// every simdgroup adds all of these sums, which saves a second barrier for handing out the result.
inline float group_sum(float value, threadgroup float* partial, uint lane, uint simdgroup,
                       uint simdgroups) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
}

// Returns the largest `value` of the group to every thread.
inline float group_max(float value, threadgroup float* partial, uint lane, uint simdgroup,
                       uint simdgroups) {
  const float top = simd_max(value);
  if (lane == 0) {
    partial[simdgroup] = top;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_max(lane < simdgroups ? partial[lane] : -INFINITY);
}
