// How far ahead decode kernels prefetch the memory that they read once, in bytes.
//
// Processors differ, so the distances are chosen by the maker of the processor:
//
// | | Intel | others |
// |---|---|---|
// | codes of weights | kFarCodes and kNearCodes | kSingleCodes |
// | scales and biases | kScales | none |
// | keys and values | kFarRows and kNearRows | none: a byte of each line is read in order |
//
// "Far" prefetches go to the second-level cache, all others to the first-level cache. The column
// "others" was measured on AMD Zen 4 and Zen 5. On two cores of an Intel Xeon with AMX, 22 November
// 2026, the column "others" and then the column "Intel" took:
//
// | products of a token of Qwen3-0.6B, 4 bits | 15.4 to 16.8 ms | 14.1 to 15.1 ms |
// | one query on 8,192 keys, 16 and 8 heads, one layer | 1,925 to 1,970 us | 1,332 to 1,373 us |
#pragma once

namespace tinyllm {

// The hardware prefetchers stop at the end of a page of 4 KB, and so does this distance.
inline constexpr int kSingleCodes = 4096;

inline constexpr int kFarCodes = 4096, kNearCodes = 1024, kScales = 512;
inline constexpr int kFarRows = 4096, kNearRows = 2048;

// True if this machine prefetches to the second-level cache first, as Intel's processors do best.
bool prefetches_in_two_steps();

}  // namespace tinyllm
