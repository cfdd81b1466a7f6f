// Reductions over all threads of a threadgroup. `partial` has one number for each simdgroup.
#include <metal_stdlib>
using namespace metal;

// Returns the sum of `value` over the group, to every thread. Each simdgroup first adds its lanes.
// Then every simdgroup adds the sums of all simdgroups. This saves a second barrier, which a
// broadcast of the result would need.
inline float group_sum(float value, threadgroup float* partial, uint lane, uint simdgroup,
                       uint simdgroups) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
}

// Returns the maximum of `value` over the group, to every thread.
inline float group_max(float value, threadgroup float* partial, uint lane, uint simdgroup,
                       uint simdgroups) {
  const float top = simd_max(value);
  if (lane == 0) {
    partial[simdgroup] = top;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_max(lane < simdgroups ? partial[lane] : -INFINITY);
}
