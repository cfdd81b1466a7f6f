// Several rows of x in integers, with the AMX matrix unit.
//
// Operand B of a product has up to 64 columns of W interleaved rows of w: a column of the tile is a
// row of w, and a row of the tile has four codes of each. Codes of 8 bits have this order in
// memory. Codes of 4 bits are unpacked to it. Operand A has up to 8 tokens, two rows for each: the
// high and the low plane. So one instruction multiplies 1,024 codes by 8 tokens. The sums of a
// group are the integers of matmul/integer/gemv.h, and they become floats in the same way. A row
// has the same bits with both kernels.
//
// x in int8 has one plane, so that operand A has up to 16 tokens. Its bits are those of
// matmul/integer/int8_gemv.h.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ceil_div.h"
#include "isa/load_store.h"
#include "isa/tile_registers.h"
#include "isa/vectors.h"
#include "isa/with_constant.h"
#include "matmul/integer/quantize_x.h"
#include "matmul/interleave.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_ISA {

// Prefetches a cache line of codes: to the second-level cache, and later to the first. The function
// is inlined, because GCC removes calls of functions that only prefetch.
[[gnu::always_inline]] inline void prefetch_line(const uint32_t* codes) {
  constexpr int kFarBytes = 4096, kNearBytes = 1024;
  const char* from = reinterpret_cast<const char*>(codes);
  __builtin_prefetch(from + kFarBytes, 0, 2);
  __builtin_prefetch(from + kNearBytes);
}

// Memory of an `AmxPipeline` for some consecutive groups. It is no member, so that the compiler
// keeps the members in registers.
template <Codes C, int Group, int Planes, int M>
struct alignas(64) AmxPipelineBuffers {
  static constexpr unsigned kCodeGroups = 4, kSumGroups = 2;

  uint8_t codes[kCodeGroups][kBits<C> == 4 ? Group * W : 1];
  int32_t sums[kSumGroups][Planes * M * W];
};

// Products of M <= kAmxTokens tokens with consecutive groups of w: all groups of W rows, then all
// groups of the next W rows.
//
// Step n unpacks group n + 3 and multiplies group n + 1, and its caller uses the sums of group n.
// So none waits for another. A step has M pieces, which the caller puts between its own
// instructions: the processor looks ahead a few hundred instructions, and works on products,
// stores of tiles and vectors at once only if they alternate finely. After the last group, steps
// unpack it again, and nothing uses it.
template <Codes C, int Group, int Planes, int M>
class AmxPipeline {
 public:
  using Buffers = AmxPipelineBuffers<C, Group, Planes, M>;

  [[gnu::always_inline]] AmxPipeline(const uint32_t* codes, const int8_t* x, int columns,
                                     int64_t groups, Buffers& buffers)
      : codes_(codes),
        last_codes_(codes + (groups - 1) * kGroupWords),
        x_begin_(x),
        x_end_(x + int64_t{Planes} * M * columns),
        x_(x),
        registers_(tile_sizes()),
        buffers_(buffers) {
    for (; step_ != -1u; ++step_) {
      for (int line = 0; line < kLines; ++line) unpack(line);
      next_codes();
    }
#pragma GCC unroll 16
    for (int piece = 0; piece < M; ++piece) run(piece);
    finish();
  }

  // The sums of the group of this step and of token m, for W rows.
  [[gnu::always_inline]] Ints sums(int m) const {
    const int32_t* from = buffers_.sums[step_ % Buffers::kSumGroups] + Planes * m * W;
    Ints high, low;
    std::memcpy(&low, from + (Planes - 1) * W, sizeof low);
    if constexpr (Planes == 1) return low;
    std::memcpy(&high, from, sizeof high);
    return (high << 7) + low;
  }

  // Runs a piece of the step, a number below M. Each is run once, in order.
  [[gnu::always_inline]] void run(int piece) {
#pragma GCC unroll 2
    for (int tile = 0; tile < kTiles; ++tile) {
      const int first = tile * M / kTiles;
      if (piece == first) multiply_first_tokens(tile);
      if (kSecondTokens > 0 && piece == first + M / 4) multiply_second_tokens(tile);
    }
    int32_t* sums = buffers_.sums[(step_ + 1) % Buffers::kSumGroups];
    if (piece == M * 3 / 4) registers_.template store<kSums>(sums, sizeof(Ints));
    if (kSecondTokens > 0 && piece == M - 1) {
      registers_.template store<kSums2>(sums + Planes * kFirstTokens * W, sizeof(Ints));
    }
#pragma GCC unroll 32
    for (int line = 0; line < kLines; ++line) {
      if (line * M / kLines == piece) unpack(line);
    }
  }

  // Ends the step.
  [[gnu::always_inline]] void finish() {
    next_codes();
    x_ += Planes * M * Group;
    if (x_ == x_end_) x_ = x_begin_;
    ++step_;
  }

 private:
  static constexpr bool kUnpacks = kBits<C> == 4;
  static constexpr int kGroupWords = Group / kCodesPerWord<kBits<C>> * W;
  static constexpr int kLines = kGroupWords / W;  // of codes
  // Tokens of two tiles of x.
  static constexpr int kFirstTokens = std::min(M, 16 / Planes), kSecondTokens = M - kFirstTokens;
  static constexpr int kColumns = group_tile_columns(Group), kTiles = Group / kColumns;
  static constexpr int kTileWords = kColumns / 4 * W;  // of a tile of bytes
  // Tile registers: sums and x of the first and of the second tokens, and codes.
  static constexpr int kSums = 0, kSums2 = 1, kX = 2, kX2 = 3, kCodes = 4;

  static TileSizes tile_sizes() {
    TileSizes sizes;
    sizes.rows[kSums] = sizes.rows[kX] = Planes * kFirstTokens;
    sizes.rows[kSums2] = sizes.rows[kX2] = Planes * std::max(kSecondTokens, 1);
    sizes.row_bytes[kX] = sizes.row_bytes[kX2] = kColumns;
    sizes.rows[kCodes] = kColumns / 4;
    return sizes;
  }

  // Prefetches and unpacks a line of codes. Words of 4-bit codes become their even codes, then
  // their odd codes.
  [[gnu::always_inline]] void unpack(int line) {
    const uint32_t* from = codes_ + line * W;
    prefetch_line(from);
    if constexpr (kUnpacks) {
      uint8_t* to = buffers_.codes[(step_ + 3) % Buffers::kCodeGroups] + 2 * line * sizeof(Words);
      const CodeBytes<C> codes(from);
      // GCC 12 copies an array that is in registers through another place in memory.
      std::memcpy(to, &codes.bytes[0], sizeof(Words));
      std::memcpy(to + sizeof(Words), &codes.bytes[1], sizeof(Words));
    }
  }

  [[gnu::always_inline]] void next_codes() {
    if (codes_ < last_codes_) codes_ += kGroupWords;
  }

  [[gnu::always_inline]] void multiply_first_tokens(int tile) {
    if (tile == 0) {
      registers_.template zero<kSums>();
      if (kSecondTokens > 0) registers_.template zero<kSums2>();
    }
    if constexpr (kUnpacks) {
      const uint8_t* codes = buffers_.codes[(step_ + 1) % Buffers::kCodeGroups];
      registers_.template load<kCodes>(codes + tile * 4 * kTileWords, sizeof(Words));
    } else {
      registers_.template load<kCodes>(codes_ + tile * kTileWords, sizeof(Words));
    }
    registers_.template load<kX>(x_ + tile * Planes * M * kColumns, kColumns);
    registers_.template multiply_add_bytes<kSums, kX, kCodes>();
  }

  [[gnu::always_inline]] void multiply_second_tokens(int tile) {
    registers_.template load<kX2>(x_ + Planes * (tile * M + kFirstTokens) * kColumns, kColumns);
    registers_.template multiply_add_bytes<kSums2, kX2, kCodes>();
  }

  const uint32_t *codes_, *last_codes_;  // of the group that is unpacked, or else multiplied
  const int8_t *x_begin_, *x_end_, *x_;  // of the group that is multiplied
  unsigned step_ = kUnpacks ? -3u : -1u;
  TileRegisters registers_;
  Buffers& buffers_;
};

// Stores `rows` <= W results of each of `tokens` tokens. `values` has W floats for each token. The
// type of y is looked up once for all of them.
inline void store_tokens(const LinearTask& t, int64_t token, int64_t tokens, int64_t first,
                         int64_t rows, const float* values) {
  if (rows < W) {
    for (int64_t m = 0; m < tokens; ++m) {
      store_results(t, token + m, first, values + m * W, rows);
    }
    return;
  }
  with_type(t.type, [&]<typename T>(T*) {
    for (int64_t m = 0; m < tokens; ++m) {
      store_vector_as<T>(t, token + m, first, load(values + m * W));
    }
  });
}

// Scales and biases of interleaved rows, as `RowAffines`. The type of affine scales is looked up at
// each access: a kernel for each type would be many functions.
template <Codes C>
class AnyRowAffines {
 public:
  AnyRowAffines(const Weights& w, int64_t first)
      : is_float16_(w.type == Type::float16), rows_(w, first), float16_rows_(w, first) {}

  Affines operator[](int64_t group) const {
    return is_float16_ ? float16_rows_[group] : rows_[group];
  }

  [[gnu::always_inline]] void prefetch(int64_t group) const { rows_.prefetch(group); }

 private:
  static constexpr bool kIsE2m1 = C == Codes::e2m1;
  using T = std::conditional_t<kIsE2m1, E8M0, BFloat16>;

  bool is_float16_;
  RowAffines<T> rows_;
  RowAffines<std::conditional_t<kIsE2m1, E8M0, Float16>> float16_rows_;
};

// Multiplies interleaved rows `first` to `last` of w by M tokens from `token` on.
template <Codes C, int Group, int Planes, int M>
void amx_integer_micro_kernel(const LinearTask& t, const Weights& w, int64_t token, int64_t first,
                              int64_t last) {
  const int64_t columns = w.columns, groups = columns / Group;
  const int64_t all_groups = ceil_div(last - first, W) * groups;
  constexpr int kCodes = kCodesPerWord<kBits<C>>;  // in a word
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * columns / kCodes;
  const AnyRowAffines<C> affines(w, first);
  int64_t group = 0;  // of `affines`, which go on with the next W rows
  AmxPipelineBuffers<C, Group, Planes, M> buffers;
  AmxPipeline<C, Group, Planes, M> products(codes, t.x_integers + token * columns * Planes,
                                            w.columns, all_groups, buffers);
  for (; first < last; first += W) {
    const float* x_scales = t.x_scales + token * groups;
    const float* x_group_sums = t.x_group_sums + token * groups;
    Floats results[M];
#pragma GCC unroll 16
    for (Floats& result : results) result = Floats{};
    for (int64_t g = 0; g < groups; ++g, ++group) {
      affines.prefetch(group);
      const auto [scale, bias] = affines_of_integers<C>(affines[group], kCodeOffset<C>);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        products.run(m);
        const Floats total = __builtin_convertvector(products.sums(m), Floats);
        results[m] += total * (scale * x_scales[m]);
        results[m] += bias * x_group_sums[m];
      }
      products.finish();
      x_scales += M, x_group_sums += M;
    }
    alignas(64) float values[M][W];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) store(values[m], results[m]);
    store_tokens(t, token, M, first, std::min<int64_t>(W, last - first), values[0]);
  }
}

// Multiplies interleaved rows `first` to `last` of w by the tokens of a part.
template <Codes C, int Group, int Planes>
void amx_integer_gemm_tokens(const LinearTask& t, const LinearRange& range, const Weights& w,
                             int64_t first, int64_t last) {
  for (int64_t m = range.first_token; m < range.last_token; m += kAmxTokens) {
    with_constant<kAmxTokens>(range.last_token - m, [&]<int M>() {
      amx_integer_micro_kernel<C, Group, Planes, M>(t, w, m, first, last);
    });
  }
}

// Computes a part, whose tokens are whole blocks of kAmxTokens except the last. `scratch` has
// memory for W interleaved rows, used if w is plain.
template <Codes C, int Planes>
void amx_integer_gemm(const LinearTask& t, const LinearRange& range, float* scratch) {
  auto multiply = amx_integer_gemm_tokens<C, 32, Planes>;
  if constexpr (C != Codes::e2m1) {  // whose groups have 32 columns
    if (t.w->group == 64) multiply = amx_integer_gemm_tokens<C, 64, Planes>;
    if (t.w->group == 128) multiply = amx_integer_gemm_tokens<C, 128, Planes>;
  }
  if (t.w->interleaved) return multiply(t, range, *t.w, range.first_row, range.last_row);
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t last = std::min<int64_t>(first + W, range.last_row);
    multiply(t, range, interleave_rows(*t.w, first, last - first, scratch), first, last);
  }
}

}  // namespace tinyllm::TINYLLM_ISA
