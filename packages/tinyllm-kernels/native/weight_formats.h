// Each kind of matrix behind one interface, for kernels that are written once for all of them.
#pragma once

#include "decode.h"
#include "numbers.h"
#include "vectors.h"
#include "weights.h"

namespace tinyllm::TINYLLM_TIER {

// A dense matrix, read with the interface of `Packed`: groups of W numbers, scale 1.
template <typename T>
struct Dense {
  using Row = const T*;
  static constexpr bool kScaled = false;
  static Affine affine(const Weights&, int64_t) { return {1, 0}; }
  static Row row(const Weights& w, int64_t n) { return static_cast<Row>(w.data) + n * w.columns; }
  static Floats raw(Row row, int k) { return load_as_floats(row + k); }
  static float one(Row row, int k) { return to_float(row[k]); }
};

template <Mode M, int Bits>
struct Coded : Packed<M, Bits> {
  using Row = const uint8_t*;
  static constexpr bool kScaled = true, kBiased = M == Mode::affine;
  static float one(Row, int) { return 0; }  // a row of codes is whole groups: there is no rest
  static void prefetch(Row row, int k) {
    __builtin_prefetch(row + int64_t{k} * Bits / 8 + kAhead);
  }
};

// Columns `k0` to `k1` of row n as floats.
template <typename Format>
void decode_row(const Weights& w, int64_t n, int k0, int k1, float* to) {
  typename Format::Row row = Format::row(w, n);
  if constexpr (Format::kScaled) {
    const int64_t groups = w.columns / w.group;
    for (int k = k0; k < k1; k += w.group) {
      Affine affine = Format::affine(w, n * groups + k / w.group);
      for (int i = 0; i < w.group; i += W) {
        store(to + k - k0 + i, Format::raw(row, k + i) * affine.scale + affine.bias);
      }
    }
  } else {
    int k = k0;
    for (; k + W <= k1; k += W) store(to + k - k0, Format::raw(row, k));
    for (; k < k1; ++k) to[k - k0] = Format::one(row, k);
  }
}

// Calls `work` with the format of a matrix.
template <typename Work>
void with_format(const Weights& w, Work work) {
  switch (w.mode) {
    case Mode::dense:
      return with_type(w.type, [&]<typename T>(T*) { work.template operator()<Dense<T>>(); });
    case Mode::mxfp4: return work.template operator()<Coded<Mode::mxfp4, 4>>();
    case Mode::mxfp8: return work.template operator()<Coded<Mode::mxfp8, 8>>();
    case Mode::nvfp4: return work.template operator()<Coded<Mode::nvfp4, 4>>();
    case Mode::affine: break;
  }
  switch (w.bits) {
    case 2: return work.template operator()<Coded<Mode::affine, 2>>();
    case 3: return work.template operator()<Coded<Mode::affine, 3>>();
    case 4: return work.template operator()<Coded<Mode::affine, 4>>();
    case 5: return work.template operator()<Coded<Mode::affine, 5>>();
    case 6: return work.template operator()<Coded<Mode::affine, 6>>();
    default: return work.template operator()<Coded<Mode::affine, 8>>();
  }
}

}  // namespace tinyllm::TINYLLM_TIER
