// Rows of keys or values: where they lie, and how they are read, a vector at a time.
#pragma once

#include <algorithm>

#include "attention/attention.h"
#include "isa/load_store.h"
#include "matmul/formats.h"

namespace tinyllm::TINYLLM_TIER {

// Rows that are looked up together, and, where they must be, unpacked together.
inline constexpr int64_t kTile = 64;

// Where some neighboring rows lie.
struct Places {
  // From key `first` on, of one head of one request.
  Places(const AttentionTask& t, const KeyValues& kv, int64_t request, int64_t head, int64_t first,
         int64_t count) {
    for (int64_t n = 0; n < count;) {
      const int64_t key = first + n;
      int64_t page = request, slot = key, run = count;
      if (t.block_table) {
        page = t.block_table[request * t.blocks + key / t.page];
        page = std::clamp<int64_t>(page, 0, t.pages - 1);
        slot = key % t.page;
        run = std::min(count - n, t.page - slot);
      }
      for (int64_t i = 0; i < run; ++i, ++n) {
        codes[n] = kv.codes.at(page, head, slot + i);
        if (kv.scales.data) scales[n] = kv.scales.at(page, head, slot + i);
        if (kv.biases.data) biases[n] = kv.biases.at(page, head, slot + i);
      }
    }
  }

  // Rows of floats, one after the other.
  Places(const float* rows, int64_t width, int64_t count) {
    for (int64_t n = 0; n < count; ++n) codes[n] = reinterpret_cast<const char*>(rows + n * width);
  }

  const char *codes[kTile], *scales[kTile], *biases[kTile];
};

// A way to read a row: vector `Part` of the `kParts` that begin together at feature d.
template <typename T>
struct DenseRows {
  static constexpr bool kScaled = false;
  static constexpr int kParts = 1, kBits = 8 * sizeof(T);

  template <int Part = 0>
  static Floats raw(const char* row, int64_t d) {
    return load_as_floats(reinterpret_cast<const T*>(row) + d);
  }
  static Affine affine(const KeyValues&, const Places&, int64_t, int64_t) { return {1, 0}; }
};

template <Mode M, int Bits>
struct CodedRows {
  static constexpr bool kScaled = true;
  static constexpr int kParts = 1, kBits = Bits;

  template <int Part = 0>
  static Floats raw(const char* row, int64_t d) {
    return Packed<M, Bits>::raw(reinterpret_cast<const uint8_t*>(row), static_cast<int>(d));
  }
  // What group `group` of row n multiplies its codes by, and adds.
  static Affine affine(const KeyValues& kv, const Places& at, int64_t n, int64_t group) {
    Weights w{};
    w.scales = at.scales[n], w.biases = at.biases[n], w.type = kv.type;
    return Packed<M, Bits>::affine(w, group);
  }
};

// W numbers of a row.
template <typename Rows, int Part = 0>
Floats numbers(const char* row, int64_t d, Affine affine) {
  Floats raw = Rows::template raw<Part>(row, d);
  return Rows::kScaled ? raw * affine.scale + affine.bias : raw;
}

// Rows as floats, `width` apart, with zeros after the last feature.
template <typename Rows>
void unpack_as(const KeyValues& kv, const Places& at, int64_t count, int64_t dim, int64_t width,
               float* to) {
  for (int64_t n = 0; n < count; ++n, to += width) {
    int64_t d = 0;
    Affine affine{};
    for (; d + W <= dim; d += W) {
      if (Rows::kScaled && d % kv.group == 0) affine = Rows::affine(kv, at, n, d / kv.group);
      store(to + d, numbers<Rows>(at.codes[n], d, affine));
    }
    std::fill(to + d, to + width, 0.0f);
    if constexpr (!Rows::kScaled) {
      for (; d < dim; ++d) to[d] = number(at.codes[n], kv.type, d);
    }
  }
}

// Reads something of each cache line of some rows, one after the other: what memory is good at, and
// what its prefetchers see through. Several rows side by side come at half the speed.
template <typename Rows>
void touch(const Places& at, int64_t first, int64_t last, int64_t dim) {
  constexpr int64_t kLine = 64;
  for (int64_t n = first; n < last; ++n) {
    for (int64_t byte = 0; byte < dim * Rows::kBits / 8; byte += kLine) {
      static_cast<void>(*static_cast<const volatile char*>(at.codes[n] + byte));
    }
  }
}

// Calls `work` with the way to read rows of a kind.
template <typename Work>
void with_rows(const KeyValues& kv, Work work) {
  switch (kv.mode) {
    case Mode::dense:
      return with_type(kv.type, [&]<typename T>(T*) { work(DenseRows<T>()); });
    case Mode::mxfp4: return work(CodedRows<Mode::mxfp4, 4>());
    case Mode::mxfp8: return work(CodedRows<Mode::mxfp8, 8>());
    case Mode::nvfp4: return work(CodedRows<Mode::nvfp4, 4>());
    case Mode::affine: break;
  }
  switch (kv.bits) {
    case 2: return work(CodedRows<Mode::affine, 2>());
    case 3: return work(CodedRows<Mode::affine, 3>());
    case 4: return work(CodedRows<Mode::affine, 4>());
    case 5: return work(CodedRows<Mode::affine, 5>());
    case 6: return work(CodedRows<Mode::affine, 6>());
    default: return work(CodedRows<Mode::affine, 8>());
  }
}

inline void unpack(const KeyValues& kv, const Places& at, int64_t count, int64_t dim, int64_t width,
                   float* to) {
  with_rows(kv, [&](auto rows) { unpack_as<decltype(rows)>(kv, at, count, dim, width, to); });
}

// Calls `work` with the places of rows and the way to read them where they lie, `step` numbers at a
// time, if that is a fast one; other rows are unpacked into `scratch` first.
template <typename Work>
void with_fast_rows(const AttentionTask& t, const KeyValues& kv, const Places& at, int64_t count,
                    int64_t step, float* scratch, Work work) {
  if (kv.mode == Mode::dense && t.dim % step == 0) {
    return with_type(kv.type, [&]<typename T>(T*) { work(DenseRows<T>(), at); });
  }
  if (kv.mode == Mode::affine && kv.bits == 8) return work(CodedRows<Mode::affine, 8>(), at);
  if (kv.mode == Mode::affine && kv.bits == 4) return work(CodedRows<Mode::affine, 4>(), at);
  unpack(kv, at, count, t.dim, t.width(), scratch);
  work(DenseRows<float>(), Places(scratch, t.width(), count));
}

// --- nibble_rows.h
// Rows of 4-bit codes, read as bytes: the lower halves of W bytes, then the upper ones.
//
// That is half the work of putting each code into a lane of its own, but it leaves the features of
// each 2 W in another order: even ones, then odd ones. Sums over features do not care, as long as
// the queries stand in the same order; sums of values are put back at the end.

struct NibbleRows : CodedRows<Mode::affine, 4> {
  static constexpr int kParts = 2;

  template <int Part>
  static Floats raw(const char* row, int64_t d) {
    Bytes bytes;
    std::memcpy(&bytes, row + d / 2, sizeof bytes);
    Words codes = widen(bytes);
    return to_floats(Part ? codes >> 4 : codes & 15);
  }
};

// Whether rows are read so where the order of features does not matter.
inline bool splits(const KeyValues& kv) { return kv.mode == Mode::affine && kv.bits == 4; }

namespace splitting {

template <int... Lanes>
inline void split(float* row, std::integer_sequence<int, Lanes...>) {
  Floats a = load(row), b = load(row + W);
  store(row, __builtin_shufflevector(a, b, 2 * Lanes...));
  store(row + W, __builtin_shufflevector(a, b, 2 * Lanes + 1 ...));
}

template <int... Lanes>
inline void join(float* row, std::integer_sequence<int, Lanes...>) {
  Floats even = load(row), odd = load(row + W);
  store(row, __builtin_shufflevector(even, odd, (Lanes % 2 * W + Lanes / 2)...));
  store(row + W, __builtin_shufflevector(even, odd, (Lanes % 2 * W + Lanes / 2 + W / 2)...));
}

}  // namespace splitting

// The features of rows that stand one after the other, into that order.
inline void split(float* rows, int64_t count) {
  for (int64_t d = 0; d < count; d += 2 * W) {
    splitting::split(rows + d, std::make_integer_sequence<int, W>{});
  }
}

// And back.
inline void join(float* rows, int64_t count) {
  for (int64_t d = 0; d < count; d += 2 * W) {
    splitting::join(rows + d, std::make_integer_sequence<int, W>{});
  }
}

}  // namespace tinyllm::TINYLLM_TIER
