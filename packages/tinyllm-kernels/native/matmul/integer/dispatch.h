// Products in integers: of decoded tokens row by row, of prompts in tiles where the kernels have them.
#pragma once

#include <algorithm>

#include "matmul/integer/gemv.h"
#include "matmul/integer/gemm.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_INTEGERS)

// Whether the rows go in tiles.
inline bool in_tiles([[maybe_unused]] Phase phase) {
#if defined(TINYLLM_INTEGER_TILES)
  return phase == Phase::prefill;
#else
  return false;
#endif
}

// Planes from that of a row on.
inline Planes planes_from(const Planes& planes, const Weights& w, int64_t row) {
  const int64_t group = row * (w.columns / w.group);
  return {planes.numbers + 2 * row * w.columns, planes.scales + group, planes.sums + group};
}

template <int Bits>
void make_planes(const float* x, [[maybe_unused]] Phase phase, const Weights& w, int64_t first,
                 int64_t last, const Planes& planes) {
#if defined(TINYLLM_INTEGER_TILES)
  for (; in_tiles(phase) && first < last; first += kIntegerTile) {
    const int64_t count = std::min<int64_t>(last - first, kIntegerTile);
    pack_integer_tile<Bits>(x + first * w.columns, count, w.columns, w.group,
                            planes_from(planes, w, first));
  }
#endif
  if (first < last) {
    to_planes<Bits>(x + first * w.columns, (last - first) * w.columns, w.group,
                    planes_from(planes, w, first));
  }
}

template <int Bits>
void multiply_integers(const LinearTask& t, const LinearRange& range, float* scratch) {
#if defined(TINYLLM_INTEGER_TILES)
  if (in_tiles(t.phase)) return multiply_integer_tiles<Bits>(t, range, scratch);
#endif
  multiply_integer_rows<Bits>(t, range, scratch);
}

// Floats that a part takes.
inline int64_t integer_scratch(const LinearTask& t) {
  const int64_t block = t.w->interleaved == W ? 0 : RowSizes(*t.w).room(W);
  return block + (in_tiles(t.phase) ? t.w->columns / 2 * W : 0);
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
