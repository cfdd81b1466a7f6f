// From packed codes to floats: W at a time, in the order in which they are packed.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "isa/load_store.h"
#include "isa/vectors.h"
#include "types.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kAhead = 2048;  // bytes of codes that are asked for before they are needed

// The first `Bytes` bytes of a stream, little end first.
template <int Bytes>
inline uint64_t first(const uint8_t* stream) {
  if constexpr (Bytes == 8) {
    uint64_t all;
    std::memcpy(&all, stream, 8);
    return all;
  } else if constexpr (Bytes >= 4) {
    uint32_t low;
    std::memcpy(&low, stream, 4);
    return low | first<Bytes - 4>(stream + 4) << 32;
  } else if constexpr (Bytes >= 2) {
    uint16_t low;
    std::memcpy(&low, stream, 2);
    return low | first<Bytes - 2>(stream + 2) << 16;
  } else {
    return Bytes ? *stream : 0;
  }
}

// 64 bits in every two lanes.
inline Words repeat(uint64_t bits) {
  using Longs [[gnu::vector_size(4 * W)]] = uint64_t;
  return std::bit_cast<Words>(Longs{} + bits);
}

// Where 32-bit word `word` of a stream of four is in two vectors that repeat two words each.
constexpr int place(int word) { return word < 2 ? word : W + (word - 2) % 2; }

// Lane i of W codes takes the bits from i * Bits on, which lie in one word of the stream or in two.
template <int Bits, int... Lanes>
inline Words codes(Words low, Words high, std::integer_sequence<int, Lanes...>) {
  constexpr Words shift = {Lanes * Bits % 32 ...};
  using Here = std::integer_sequence<int, place(Lanes * Bits / 32)...>;
  Words code = pick(low, high, Here{}) >> shift;
  if constexpr (32 % Bits != 0) {
    using Next = std::integer_sequence<int, place(Lanes * Bits / 32 + 1)...>;
    code |= pick(low, high, Next{}) << 1 << (31 - shift);
  }
  return code & ((1u << Bits) - 1);
}

// W codes of `Bits` bits from a stream that begins at a byte.
template <int Bits>
inline Words codes(const uint8_t* stream) {
  constexpr int bytes = W * Bits / 8;
  if constexpr (Bits == 8) {
    Bytes codes;
    std::memcpy(&codes, stream, sizeof codes);
    return widen(codes);
  } else {
    Words low = repeat(first<bytes < 8 ? bytes : 8>(stream));
    Words high = bytes > 8 ? repeat(first<(bytes > 8 ? bytes - 8 : 0)>(stream + 8)) : low;
    return codes<Bits>(low, high, std::make_integer_sequence<int, W>{});
  }
}

inline Floats to_floats(Words codes) {
  return __builtin_convertvector(std::bit_cast<Ints>(codes), Floats);
}

// E2M1: a sign, two bits of exponent, one of mantissa.
inline Floats e2m1(Words code) {
  // As a float, the three low bits are 2^-126 times the number, the subnormal 0.5 included.
  Words magnitude = (code & 7) << 22;
  Floats value = std::bit_cast<Floats>(magnitude) * 0x1p126f;
  return std::bit_cast<Floats>(std::bit_cast<Words>(value) | (code & 8) << 28);
}

// E4M3: a sign, four bits of exponent, three of mantissa; all ones are NaN, and nothing is infinite.
inline Floats e4m3(Words code) {
  Floats value = std::bit_cast<Floats>((code & 0x7f) << 20) * 0x1p120f;
  Words bits = std::bit_cast<Words>(value) | (code & 0x80) << 24;
  Words nan = std::bit_cast<Words>((code & 0x7f) == 0x7f) & 0x7fc00000u;
  return std::bit_cast<Floats>(bits | nan);
}

inline float e4m3(uint8_t code) { return e4m3(Words{} + code)[0]; }

// E8M0: a power of two. 0 stands for 2^-127, which is subnormal.
inline float e8m0(uint8_t code) { return std::ldexp(1.0f, int{code} - 127); }

// What a group multiplies its codes by, and adds.
struct Affine {
  float scale, bias;
};

inline float number(const void* data, Type type, int64_t index) {
  switch (type) {
    case Type::float32: return static_cast<const float*>(data)[index];
    case Type::float16: return to_float(static_cast<const Float16*>(data)[index]);
    case Type::bfloat16: return to_float(static_cast<const BFloat16*>(data)[index]);
    case Type::uint8: return static_cast<const uint8_t*>(data)[index];
  }
  __builtin_unreachable();
}

// How to read one kind of matrix; `Weights` says which.
template <Mode M, int Bits>
struct Packed {
  static Affine affine(const Weights& w, int64_t group) {
    if constexpr (M == Mode::affine) {
      return {number(w.scales, w.type, group), number(w.biases, w.type, group)};
    } else {
      uint8_t byte = static_cast<const uint8_t*>(w.scales)[group];
      return {M == Mode::nvfp4 ? e4m3(byte) : e8m0(byte), 0};
    }
  }

  static const uint8_t* row(const Weights& w, int64_t n) {
    return static_cast<const uint8_t*>(w.data) + n * (int64_t{w.columns} * Bits / 8);
  }

  // W numbers before scale and bias.
  static Floats raw(const uint8_t* row, int k) {
    Words code = codes<Bits>(row + int64_t{k} * Bits / 8);
    if constexpr (M == Mode::affine) return to_floats(code);
    return Bits == 4 ? e2m1(code) : e4m3(code);
  }
};

// --- weight_formats.h
// Each kind of matrix behind one interface, for kernels that are written once for all of them.

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
