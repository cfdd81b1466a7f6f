// Formats of weight matrices: reading packed codes and dense numbers as floats, W at a time.
//
// Codes of B bits are packed as MLX packs them: a little-endian stream of bits in each row, in the
// order of the columns. So W consecutive codes begin at a byte.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <array>
#include <bit>

#include "isa/load_store.h"
#include "isa/vectors.h"
#include "runtime/prefetch_distances.h"
#include "types.h"

namespace tinyllm::TINYLLM_ISA {

// Reads exactly the first `Bytes` bytes, 8 at most, of a little-endian stream.
template <int Bytes>
inline uint64_t load_bytes(const uint8_t* stream) {
  if constexpr (Bytes == 8) {
    uint64_t all;
    std::memcpy(&all, stream, 8);
    return all;
  } else if constexpr (Bytes >= 4) {
    uint32_t low;
    std::memcpy(&low, stream, 4);
    return low | load_bytes<Bytes - 4>(stream + 4) << 32;
  } else if constexpr (Bytes >= 2) {
    uint16_t low;
    std::memcpy(&low, stream, 2);
    return low | load_bytes<Bytes - 2>(stream + 2) << 16;
  } else {
    return Bytes ? *stream : 0;
  }
}

// A vector that repeats 64 bits.
inline Words repeat(uint64_t bits) {
  using Longs [[gnu::vector_size(4 * W)]] = uint64_t;
  return bit_cast<Words>(Longs{} + bits);
}

// The shuffle index of 32-bit word `word` of a 128-bit stream. Vector `low` repeats words 0 and 1,
// vector `high` words 2 and 3.
constexpr int word_index(int word) { return word < 2 ? word : W + (word - 2) % 2; }

// Lane i takes the bits from i * Bits on. They lie in one word of the stream, or in two.
template <int Bits, int... Lanes>
inline Words unpack_codes(Words low, Words high, std::integer_sequence<int, Lanes...>) {
  constexpr Words shift = {Lanes * Bits % 32 ...};
  using FirstWord = std::integer_sequence<int, word_index(Lanes * Bits / 32)...>;
  Words code = pick(low, high, FirstWord{}) >> shift;
  if constexpr (32 % Bits != 0) {
    using NextWord = std::integer_sequence<int, word_index(Lanes * Bits / 32 + 1)...>;
    code |= pick(low, high, NextWord{}) << 1 << (31 - shift);
  }
  return code & ((1u << Bits) - 1);
}

// Unpacks W codes of `Bits` bits from a stream.
template <int Bits>
inline Words unpack_codes(const uint8_t* stream) {
  constexpr int bytes = W * Bits / 8;
  if constexpr (Bits == 8) {
    Bytes codes;
    std::memcpy(&codes, stream, sizeof codes);
    return widen(codes);
  } else {
    Words low = repeat(load_bytes<bytes < 8 ? bytes : 8>(stream));
    Words high = bytes > 8 ? repeat(load_bytes<(bytes > 8 ? bytes - 8 : 0)>(stream + 8)) : low;
    return unpack_codes<Bits>(low, high, std::make_integer_sequence<int, W>{});
  }
}

inline Floats to_floats(Words codes) {
  return __builtin_convertvector(bit_cast<Ints>(codes), Floats);
}

#if defined(__AVX512F__)
// The number with this index, for each lane. Only the lower four bits of an index are read.
inline Floats look_up(Floats numbers, Words index) {
  return bit_cast<Floats>(
      _mm512_permutexvar_ps(bit_cast<__m512i>(index), bit_cast<__m512>(numbers)));
}
#endif

// E2M1: a sign bit, two bits of exponent, one bit of mantissa.
inline Floats e2m1(Words code) {
#if defined(__AVX512F__)
  constexpr Floats kNumbers = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  return look_up(kNumbers, code);
#else
#if defined(__AVX2__)
  constexpr Floats kNumbers = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const Floats value = bit_cast<Floats>(  // reads the lower three bits of each index
      _mm256_permutevar8x32_ps(bit_cast<__m256>(kNumbers), bit_cast<__m256i>(code)));
#else
  // Code 1 is subnormal. It is read with exponent 1, which adds 1, and the difference is exact. So
  // no operation reads or makes a subnormal float: these take some hundred cycles on Intel, and
  // count as zero if the process has set DAZ.
  constexpr uint32_t kExponent = 1u << 23, kBias = 126 * kExponent;
  const Words subnormal = bit_cast<Words>((code & 7) < 2);
  const Words bits = ((code & 7) << 22) + kBias + (subnormal & kExponent);
  const Floats value = bit_cast<Floats>(bits) - bit_cast<Floats>(subnormal & (kBias + kExponent));
#endif
  return bit_cast<Floats>(bit_cast<Words>(value) | (code & 8) << 28);
#endif
}

// E4M3: a sign bit, four bits of exponent, three bits of mantissa. The code with all exponent and
// mantissa bits set is NaN. There is no infinity.
//
// The sign, exponent and mantissa of a code are those of a float16 that is 2^-8 times as large.
// This holds for subnormal numbers, too. All bits set, as a comparison returns them, are NaN.
template <typename Integers>
inline Integers e4m3_as_float16(Integers codes) {
  return (codes << 7 & int16_t(0xbf80)) | ((codes & 127) == 127);
}

inline Floats e4m3(SignedBytes codes) {
  return to_floats(bit_cast<Float16s>(e4m3_as_float16(widen(codes)))) * 256;
}

// 2 W numbers, divided by 256.
inline void read_e4m3(const uint8_t* from, Floats (&numbers)[2]) {
  using Codes [[gnu::vector_size(2 * W)]] = int8_t;
  using Integers [[gnu::vector_size(4 * W)]] = int16_t;
  Codes codes;
  std::memcpy(&codes, from, sizeof codes);
#if defined(__AVX512BW__)
  const Integers integers = bit_cast<Integers>(_mm512_cvtepi8_epi16(bit_cast<__m256i>(codes)));
#elif defined(__AVX2__)
  const Integers integers = bit_cast<Integers>(_mm256_cvtepi8_epi16(bit_cast<__m128i>(codes)));
#else
  const Integers integers = __builtin_convertvector(codes, Integers);
#endif
  Float16s halves[2];
  const Integers bits = e4m3_as_float16(integers);
  std::memcpy(halves, &bits, sizeof bits);
  for (int i = 0; i < 2; ++i) numbers[i] = to_floats(halves[i]);
}

// The numbers of all codes of E4M3, in the order of the codes. Groups of nvfp4 have 16 columns, so
// computing the number of a scale would take longer than the rest of its group.
constexpr std::array<float, 256> all_e4m3() {
  std::array<float, 256> numbers{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const uint32_t normal = static_cast<uint32_t>(exponent + 120) << 23 | mantissa << 20;
    float number = exponent ? bit_cast<float>(normal) : static_cast<float>(mantissa) / 512;
    if ((code & 127) == 127) number = bit_cast<float>(0x7fc00000u);
    numbers[code] = code & 128 ? -number : number;
  }
  return numbers;
}

inline float e4m3(uint8_t code) {
  static constexpr std::array<float, 256> kNumbers = all_e4m3();
  return kNumbers[code];
}

// The numbers of all codes of E8M0, powers of two, in the order of the codes. Code 0 is 2^-127,
// which is subnormal, and code 255 is infinity.
constexpr std::array<float, 256> all_e8m0() {
  std::array<float, 256> numbers{};
  for (uint32_t code = 0; code < 256; ++code) {
    numbers[code] = bit_cast<float>(code ? code << 23 : 1u << 22);
  }
  return numbers;
}

inline float e8m0(uint8_t code) {
  static constexpr std::array<float, 256> kNumbers = all_e8m0();
  return kNumbers[code];
}

// The scale and bias of a group: a code stands for code * scale + bias.
struct Affine {
  float scale, bias;
};

inline float number_at(const void* data, Type type, int64_t index) {
  switch (type) {
    case Type::float32: return static_cast<const float*>(data)[index];
    case Type::float16: {
      Float16 number;  // copied, because copies of scales are written as integers
      std::memcpy(&number, static_cast<const char*>(data) + index * sizeof number, sizeof number);
      return to_float(number);
    }
    case Type::bfloat16: return to_float(static_cast<const BFloat16*>(data)[index]);
    case Type::uint8: return static_cast<const uint8_t*>(data)[index];
  }
  __builtin_unreachable();
}

// A format is a type with static functions that read the rows of a matrix. Kernels are templates
// over it. Dense matrices count as scaled by 1.
template <typename T>
struct Dense {
  using Row = const T*;
  static constexpr bool kScaled = false;

  static Affine affine(const Weights&, int64_t) { return {1, 0}; }
  static Row row(const Weights& w, int64_t n) { return static_cast<Row>(w.data) + n * w.columns; }
  static Floats raw(Row row, int k) { return load_as_floats(row + k); }
  static float one(Row row, int k) { return to_float(row[k]); }

  // Prefetches what follows the numbers at `from`.
  static void prefetch(Row from, PrefetchDistances distances) {
    const char* at = reinterpret_cast<const char*>(from);
    __builtin_prefetch(at + distances.far, 0, 2);
    __builtin_prefetch(at + distances.near, 0, 3);
  }
};

template <Mode M, int Bits>
struct Quantized {
  using Row = const uint8_t*;
  static constexpr bool kScaled = true;
  static constexpr bool kBiased = M == Mode::affine;
  // Columns of a group, or 0 if the matrix decides.
  static constexpr int kGroup = kBiased ? 0 : M == Mode::nvfp4 ? 16 : 32;
  // Vectors that are read at once, and their unit.
  static constexpr int kVectors = M == Mode::mxfp8 ? 2 : 1;
  static constexpr float kUnit = M == Mode::mxfp8 ? 256 : 1;
  // Columns of a cache line, rounded down to a power of two.
  static constexpr int kLineColumns = std::bit_floor(64u * 8 / Bits);

  // The scale and bias of a group. Groups are counted through all rows of w.
  static Affine affine(const Weights& w, int64_t group) {
    if constexpr (M == Mode::affine) {
      return {number_at(w.scales, w.type, group), number_at(w.biases, w.type, group)};
    } else {
      uint8_t byte = static_cast<const uint8_t*>(w.scales)[group];
      return {M == Mode::nvfp4 ? e4m3(byte) : e8m0(byte), 0};
    }
  }

  static Row row(const Weights& w, int64_t n) {
    return static_cast<Row>(w.data) + n * (int64_t{w.columns} * Bits / 8);
  }

  // W numbers from column k on, before scale and bias.
  static Floats raw(Row row, int k) {
    const uint8_t* from = row + int64_t{k} * Bits / 8;
    if constexpr (M == Mode::mxfp8) {
      SignedBytes codes;
      std::memcpy(&codes, from, sizeof codes);
      return e4m3(codes);
    } else {
      const Words codes = unpack_codes<Bits>(from);
      return M == Mode::affine ? to_floats(codes) : e2m1(codes);
    }
  }

  // kVectors vectors from column k on, before unit, scale and bias.
  static void read(Row row, int k, Floats (&numbers)[kVectors]) {
    if constexpr (M == Mode::mxfp8) {
      read_e4m3(row + k, numbers);
    } else {
      numbers[0] = raw(row, k);
    }
  }

  // Prefetches the codes that are `kPrefetchBytes` after column k.
  static void prefetch(Row row, int k) {
    constexpr int kPrefetchBytes = 4096;
    __builtin_prefetch(row + int64_t{k} * Bits / 8 + kPrefetchBytes);
  }
};

// Writes columns k0 to k1 of row n as floats. k0 and k1 are multiples of the group.
template <typename Format>
void dequantize_row(const Weights& w, int64_t n, int k0, int k1, float* to) {
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

// Calls `work.operator()<Format>()` with the format of w.
template <typename Work>
void with_format(const Weights& w, Work work) {
  switch (w.mode) {
    case Mode::dense:
      return with_type(w.type, [&]<typename T>(T*) { work.template operator()<Dense<T>>(); });
    case Mode::mxfp4: return work.template operator()<Quantized<Mode::mxfp4, 4>>();
    case Mode::mxfp8: return work.template operator()<Quantized<Mode::mxfp8, 8>>();
    case Mode::nvfp4: return work.template operator()<Quantized<Mode::nvfp4, 4>>();
    case Mode::affine: break;
  }
  switch (w.bits) {
    case 2: return work.template operator()<Quantized<Mode::affine, 2>>();
    case 3: return work.template operator()<Quantized<Mode::affine, 3>>();
    case 4: return work.template operator()<Quantized<Mode::affine, 4>>();
    case 5: return work.template operator()<Quantized<Mode::affine, 5>>();
    case 6: return work.template operator()<Quantized<Mode::affine, 6>>();
    default: return work.template operator()<Quantized<Mode::affine, 8>>();
  }
}

}  // namespace tinyllm::TINYLLM_ISA
