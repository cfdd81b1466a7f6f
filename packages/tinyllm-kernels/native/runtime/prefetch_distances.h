// How far ahead decode kernels prefetch the memory that they read once, in bytes.
//
// Processors differ, so the distances are chosen by the processor:
//
// | | Intel | AMD family 25 (Zen 3, Zen 4) | others |
// |---|---|---|---|
// | codes of weights | kFarCodes and kNearCodes | kSingleCodes | kSingleCodes |
// | scales and biases | kScales | none | none |
// | keys and values | 4,096 and 2,048 | 8,192 and 2,048 | none: a byte of each line is read in order |
//
// "Far" prefetches go to the second-level cache, all others to the first-level cache. The column
// "others" was measured on Zen 5, and for codes of weights on Zen 4. Measured without and with
// prefetches in two steps, two cores each:
//
// | Intel Xeon with AMX, 22 November 2026 | without | with |
// |---|---|---|
// | products of a token of Qwen3-0.6B, 4 bits | 15.4 to 16.8 ms | 14.1 to 15.1 ms |
// | one query on 8,192 keys, 16 and 8 heads, one layer | 1,925 to 1,970 us | 1,332 to 1,373 us |
//
// | AMD EPYC, Zen 4, 24 November 2026 | without | with |
// |---|---|---|
// | products of a token of Qwen3-0.6B, 4 bits | 10.7 to 11.2 ms | 10.6 to 11.3 ms |
// | one query on 8,192 keys, bfloat16 | 1,358 to 1,910 us | 1,154 to 1,277 us |
// | the same, float32 | 3,058 to 3,259 us | 2,020 to 2,437 us |
#pragma once

namespace tinyllm {

// The hardware prefetchers stop at the end of a page of 4 KB, and so does this distance.
inline constexpr int kSingleCodes = 4096;

inline constexpr int kFarCodes = 4096, kNearCodes = 1024, kScales = 512;

// True if this machine prefetches codes to the second-level cache first.
bool prefetches_in_two_steps();

// Distances of the two prefetches of keys and values. Zero if there are none.
struct RowDistances {
  int far, near;
};

RowDistances row_distances();

}  // namespace tinyllm
