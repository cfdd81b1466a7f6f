// How far ahead decode kernels prefetch the memory that they read once, in bytes.
//
// Processors differ, so the distances are chosen by the processor:
//
// | | Intel | AMD family 25 (Zen 3, Zen 4) | others |
// |---|---|---|---|
// | codes of weights | 4,096 and 1,024 | 8,192 and 2,048 | kSingleCodes |
// | scales and biases | kScales | kScales | none |
// | keys and values | 4,096 and 2,048 | 8,192 and 2,048 | none: a byte of each line is read |
// | dense rows of w | 4,096 and 2,048 | 8,192 and 2,048 | none |
//
// The first of two distances is to the second-level cache, all others are to the first-level cache.
// The column "others" was measured on Zen 5. Measured with the column "others", then with two
// distances, two cores each, both programs by turns:
//
// | Intel Xeon with AMX, 22 November 2026 | others | two distances |
// |---|---|---|
// | products of a token of Qwen3-0.6B, 4 bits | 15.4 to 16.8 ms | 14.1 to 15.1 ms |
// | one query on 8,192 keys, 16 and 8 heads, one layer | 1,925 to 1,970 us | 1,332 to 1,373 us |
//
// | AMD EPYC, Zen 4, 24 November 2026 | others | two distances |
// |---|---|---|
// | products of a token of Qwen3-0.6B, 4 bits, medians | 12.5 ms | 11.5 ms |
// | one query on 8,192 keys, bfloat16 | 1,358 to 1,910 us | 1,154 to 1,277 us |
// | the same, float32 | 3,058 to 3,259 us | 2,020 to 2,437 us |
#pragma once

#include <cstdint>

namespace tinyllm {

// The hardware prefetchers stop at the end of a page of 4 KB, and so does this distance.
inline constexpr int kSingleCodes = 4096;

inline constexpr int kScales = 512;

// Distances of two prefetches. Zero if this machine has one prefetch or none.
struct PrefetchDistances {
  int64_t far, near;
};

PrefetchDistances code_distances();
PrefetchDistances row_distances();

}  // namespace tinyllm
