// Reductions over all threads of a threadgroup, which every thread must call.
//
//   partial     one number for each simdgroup. A second reduction needs another `partial`, or a
//               barrier before it: some threads may still read the numbers of the first.
//   lane        the index of the thread in its simdgroup
//   simdgroup   the index of the simdgroup in the threadgroup
//   simdgroups  the number of simdgroups, at most 32
#include <metal_stdlib>
using namespace metal;

// Returns the sum of `value` over the threadgroup, to every thread. Each simdgroup first adds its
// lanes. Then every simdgroup adds the sums of all simdgroups. If only one simdgroup added them,
// a second barrier would be needed before the other simdgroups could read the result.
inline float group_sum(float value, threadgroup float* partial, uint lane, uint simdgroup,
                       uint simdgroups) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
}

// Returns the maximum of `value` over the threadgroup, to every thread.
inline float group_max(float value, threadgroup float* partial, uint lane, uint simdgroup,
                       uint simdgroups) {
  const float top = simd_max(value);
  if (lane == 0) {
    partial[simdgroup] = top;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_max(lane < simdgroups ? partial[lane] : -INFINITY);
}
