// Rows of keys or values: their addresses, and formats that read them a vector at a time.
#pragma once

#include <algorithm>

#include "attention/attention.h"
#include "isa/load_store.h"
#include "matmul/formats.h"

namespace tinyllm::TINYLLM_ISA {

// Rows whose addresses are looked up together and, if necessary, dequantized together.
inline constexpr int64_t kRowBatch = 64;

// Calls `each(n, end, page, slot)` for the pages of rows `first` to `first + count` of a request.
// Rows n to `end` of these are in the page from `slot` on. The block table is read here only.
template <typename Each>
[[gnu::always_inline]] inline void for_pages(const AttentionTask& t, int64_t request, int64_t first,
                                             int64_t count, Each each) {
  for (int64_t n = 0, end; n < count; n = end) {
    const int64_t key = first + n;
    int64_t page = request, slot = key;
    end = count;
    if (t.block_tables) {
      page = t.block_tables[request * t.block_table_width + key / t.page_size];
      page = std::clamp<int64_t>(page, 0, t.pages - 1);
      slot = key % t.page_size;
      end = std::min(count, n + t.page_size - slot);
    }
    each(n, end, page, slot);
  }
}

// Writes the addresses of rows `first` to `first + count` of one head of one request.
inline void find_rows(const AttentionTask& t, const KeyValues::StridedRows& rows, int64_t request,
                      int64_t head, int64_t first, int64_t count, const char** to) {
  for_pages(t, request, first, count, [&](int64_t n, int64_t end, int64_t page, int64_t slot) {
    const int64_t stride = rows.strides[2], run = end - n;
    const char* row = rows.at(page, head, slot);
    const char** run_to = to + n;
    for (int64_t i = 0; i < run; ++i) run_to[i] = row + i * stride;
  });
}

// The addresses of up to kRowBatch consecutive rows.
struct RowPointers {
  // Rows of keys `first` to `first + count` of one head of one request.
  RowPointers(const AttentionTask& t, const KeyValues& kv, int64_t request, int64_t head,
              int64_t first, int64_t count) {
    find_rows(t, kv.codes, request, head, first, count, codes);
    if (kv.scales.data) find_rows(t, kv.scales, request, head, first, count, scales);
    if (kv.biases.data) find_rows(t, kv.biases, request, head, first, count, biases);
  }

  // Rows of floats that are `width` floats apart.
  RowPointers(const float* rows, int64_t width, int64_t count) {
    for (int64_t n = 0; n < count; ++n) codes[n] = reinterpret_cast<const char*>(rows + n * width);
  }

  const char *codes[kRowBatch], *scales[kRowBatch], *biases[kRowBatch];
};

// A row format is a type with static functions that read rows; kernels are templates over it. A row
// is read in steps of kVectors vectors of features, and `raw<I>` is vector I of a step.
template <typename T>
struct DenseRows {
  static constexpr bool kScaled = false;
  static constexpr int kVectors = 1, kBits = 8 * sizeof(T);

  template <int I = 0>
  static Floats raw(const char* row, int64_t d) {
    return load_as_floats(reinterpret_cast<const T*>(row) + d);
  }
  static Affine affine(const KeyValues&, const RowPointers&, int64_t, int64_t) { return {1, 0}; }
};

template <Mode M, int Bits>
struct QuantizedRows {
  static constexpr bool kScaled = true;
  static constexpr int kVectors = 1, kBits = Bits;

  template <int I = 0>
  static Floats raw(const char* row, int64_t d) {
    return Quantized<M, Bits>::raw(reinterpret_cast<const uint8_t*>(row), static_cast<int>(d));
  }
  // The scale and bias of a group of row n.
  static Affine affine(const KeyValues& kv, const RowPointers& rows, int64_t n, int64_t group) {
    Weights w{};
    w.scales = rows.scales[n], w.biases = rows.biases[n], w.type = kv.type;
    return Quantized<M, Bits>::affine(w, group);
  }
};

// Rows of codes of 4 bits, read as bytes: a step is 2 W features, first the lower four bits of W
// bytes, then the upper four bits. So vector 0 has the even features and vector 1 the odd features.
//
// This takes half the work of giving each code a lane in order. Sums over features do not depend on
// the order, if queries are in even-odd order, too. Sums of values are restored at the end.
struct EvenOddRows : QuantizedRows<Mode::affine, 4> {
  static constexpr int kVectors = 2;

  template <int I>
  static Floats raw(const char* row, int64_t d) {
    Bytes bytes;
    std::memcpy(&bytes, row + d / 2, sizeof bytes);
    Words codes = widen(bytes);
    return to_floats(I ? codes >> 4 : codes & 15);
  }
};

// True if rows are read as `EvenOddRows` by kernels that permit another order of features.
inline bool reads_even_odd(const KeyValues& kv) { return kv.mode == Mode::affine && kv.bits == 4; }

// W features of a row: vector I of the step that begins at feature d.
template <typename Rows, int I = 0>
Floats load_features(const char* row, int64_t d, Affine affine) {
  Floats raw = Rows::template raw<I>(row, d);
  return Rows::kScaled ? raw * affine.scale + affine.bias : raw;
}

// Writes rows as floats, `width` floats apart, with zeros after the last feature.
template <typename Rows>
void dequantize_rows_as(const KeyValues& kv, const RowPointers& rows, int64_t count, int64_t dim,
                        int64_t width, float* to) {
  for (int64_t n = 0; n < count; ++n, to += width) {
    int64_t d = 0;
    Affine affine{};
    for (; d + W <= dim; d += W) {
      if (Rows::kScaled && d % kv.group == 0) affine = Rows::affine(kv, rows, n, d / kv.group);
      store(to + d, load_features<Rows>(rows.codes[n], d, affine));
    }
    std::fill(to + d, to + width, 0.0f);
    if constexpr (!Rows::kScaled) {
      for (; d < dim; ++d) to[d] = number_at(rows.codes[n], kv.type, d);
    }
  }
}

// Calls `work` with an object of the row format of `kv`.
template <typename Work>
void with_row_format(const KeyValues& kv, Work work) {
  switch (kv.mode) {
    case Mode::dense:
      return with_type(kv.type, [&]<typename T>(T*) { work(DenseRows<T>()); });
    case Mode::mxfp4: return work(QuantizedRows<Mode::mxfp4, 4>());
    case Mode::mxfp8: return work(QuantizedRows<Mode::mxfp8, 8>());
    case Mode::nvfp4: return work(QuantizedRows<Mode::nvfp4, 4>());
    case Mode::affine: break;
  }
  switch (kv.bits) {
    case 2: return work(QuantizedRows<Mode::affine, 2>());
    case 3: return work(QuantizedRows<Mode::affine, 3>());
    case 4: return work(QuantizedRows<Mode::affine, 4>());
    case 5: return work(QuantizedRows<Mode::affine, 5>());
    case 6: return work(QuantizedRows<Mode::affine, 6>());
    default: return work(QuantizedRows<Mode::affine, 8>());
  }
}

inline void dequantize_rows(const KeyValues& kv, const RowPointers& rows, int64_t count,
                            int64_t dim, int64_t width, float* to) {
  with_row_format(kv, [&](auto format) {
    dequantize_rows_as<decltype(format)>(kv, rows, count, dim, width, to);
  });
}

// Calls `work(format, rows)`. Dense rows of whole steps of `step` features, and affine rows of 4 or
// 8 bits, are read in place. Other rows are dequantized to `scratch`, which has kRowBatch rows of
// `padded_dim()` floats.
template <typename Work>
void with_fast_rows(const AttentionTask& t, const KeyValues& kv, const RowPointers& rows,
                    int64_t count, int64_t step, float* scratch, Work work) {
  if (kv.mode == Mode::dense && t.dim % step == 0) {
    return with_type(kv.type, [&]<typename T>(T*) { work(DenseRows<T>(), rows); });
  }
  if (kv.mode == Mode::affine && kv.bits == 8) return work(QuantizedRows<Mode::affine, 8>(), rows);
  if (kv.mode == Mode::affine && kv.bits == 4) return work(QuantizedRows<Mode::affine, 4>(), rows);
  dequantize_rows(kv, rows, count, t.dim, t.padded_dim(), scratch);
  work(DenseRows<float>(), RowPointers(scratch, t.padded_dim(), count));
}

namespace even_odd {

template <int... Lanes>
inline void split(float* features, std::integer_sequence<int, Lanes...>) {
  Floats a = load(features), b = load(features + W);
  store(features, __builtin_shufflevector(a, b, 2 * Lanes...));
  store(features + W, __builtin_shufflevector(a, b, 2 * Lanes + 1 ...));
}

template <int... Lanes>
inline void join(float* features, std::integer_sequence<int, Lanes...>) {
  Floats even = load(features), odd = load(features + W);
  store(features, __builtin_shufflevector(even, odd, (Lanes % 2 * W + Lanes / 2)...));
  store(features + W, __builtin_shufflevector(even, odd, (Lanes % 2 * W + Lanes / 2 + W / 2)...));
}

}  // namespace even_odd

// Reorders `count` features of consecutive rows in place: of each 2 W features first the even
// features, then the odd features.
inline void to_even_odd_order(float* rows, int64_t count) {
  for (int64_t d = 0; d < count; d += 2 * W) {
    even_odd::split(rows + d, std::make_integer_sequence<int, W>{});
  }
}

// The inverse of `to_even_odd_order`.
inline void from_even_odd_order(float* rows, int64_t count) {
  for (int64_t d = 0; d < count; d += 2 * W) {
    even_odd::join(rows + d, std::make_integer_sequence<int, W>{});
  }
}

}  // namespace tinyllm::TINYLLM_ISA
