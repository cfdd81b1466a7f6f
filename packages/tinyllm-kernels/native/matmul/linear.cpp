// Linear layers: the choice of the kernel, the parts of a task, and embedding rows.
#include "matmul/linear.h"

#include <algorithm>

#include "isa/float_buffer.h"
#include "isa/load_store.h"
#include "isa/tile_registers.h"
#include "isa/vectors.h"
#include "matmul/bfloat16/round.h"
#include "matmul/float/gemm.h"
#include "matmul/float/gemv.h"
#include "matmul/formats.h"
#include "matmul/integer/gemm.h"
#include "matmul/integer/quantize_x.h"
#include "matmul/integer_parts.h"
#include "matmul/interleave.h"
#include "types.h"

#if defined(TINYLLM_AMX)
#include "matmul/bfloat16/amx_gemm.h"
#include "matmul/integer/amx_gemm.h"
#elif defined(__AVX512BF16__)
#include "matmul/bfloat16/avx512_gemv.h"
#define TINYLLM_BFLOAT16_GEMV
#define TINYLLM_PACKED_BFLOAT16
#elif defined(TINYLLM_BFLOAT16)
#include "matmul/bfloat16/neon_gemm.h"
#define TINYLLM_PACKED_BFLOAT16
#endif

namespace tinyllm::TINYLLM_ISA {
namespace {

// Bytes of x in a part, at most. They stay in the second-level cache beside a panel of w.
constexpr int64_t kTokenRangeBytes = 384 << 10;

// Tokens of a part, a multiple of 32 unless x has fewer rows.
int64_t tokens_for_cache(const LinearTask& t, int64_t token_bytes) {
  return std::min(std::max<int64_t>(kTokenRangeBytes / token_bytes / 32 * 32, 32), t.tokens);
}

// True if packed x of this type is in pairs of bfloat16. Otherwise it is in floats.
bool packs_bfloat16([[maybe_unused]] Type type) {
#if defined(TINYLLM_PACKED_BFLOAT16)
  return type == Type::bfloat16;
#else
  return false;
#endif
}

bool has_packed_bfloat16(const LinearTask& t) { return t.x_packed && packs_bfloat16(t.type); }

// True if the kernels of packed bfloat16 read interleaved rows.
#if defined(TINYLLM_BFLOAT16_GEMV)
constexpr bool kBFloat16ReadsInterleaved = true;
#else
constexpr bool kBFloat16ReadsInterleaved = false;
#endif

// True if the kernel of the task reads w as it is stored. Otherwise rows are deinterleaved first.
bool reads_w_as_stored(const LinearTask& t) {
  if (!t.w->interleaved || t.x_unpacked) return true;
  return t.w->interleaved == W &&
         (t.x_integers || (has_packed_bfloat16(t) && kBFloat16ReadsInterleaved));
}

#if defined(TINYLLM_INTEGERS)

int64_t integer_scratch(const LinearTask& t) {
  const int64_t interleaved = t.w->interleaved == W ? 0 : RowSizes(*t.w).floats(W);
#if defined(TINYLLM_INTEGER_GEMM)
  if (uses_panels(*t.w, t.phase, t.tokens)) return interleaved + integer_gemm_floats(t);
#endif
  return interleaved;
}

#endif

template <typename Format>
void float_part(const LinearTask& t, const LinearRange& range, float* scratch) {
  if (t.phase == Phase::decode) return float_gemv<Format>(t, range);
  float_gemm<Format>(t, range, scratch);
}

}  // namespace

bool linear_uses_integers([[maybe_unused]] const Weights& w, [[maybe_unused]] Type type) {
#if defined(TINYLLM_INTEGERS)
  return supports_integers(w) && (type != Type::float32 || uses_int8_activations(w));
#else
  return false;
#endif
}

bool linear_uses_int8_activations([[maybe_unused]] const Weights& w) {
#if defined(TINYLLM_INTEGERS)
  return uses_int8_activations(w);
#else
  return false;
#endif
}

int linear_interleaved_rows([[maybe_unused]] const Weights& w) {
#if defined(TINYLLM_INTEGERS)
  return supports_integers(w) && w.rows % W == 0 ? W : 0;
#else
  return 0;
#endif
}

bool linear_reads_x_unpacked([[maybe_unused]] Type type) {
#if defined(TINYLLM_AMX)
  return type == Type::bfloat16;
#else
  return false;
#endif
}

bool linear_packs_x(const Weights& w, Type type) {
  return packs_bfloat16(type) ? !linear_uses_int8_activations(w) : !linear_uses_integers(w, type);
}

int64_t linear_packed_words(Type type, int columns) {
  return packs_bfloat16(type) ? packed_pairs(columns) : columns;
}

void linear_pack_x(const void* x, Type type, int64_t rows, int columns, int64_t first, int64_t last,
                   uint32_t* packed) {
#if defined(TINYLLM_PACKED_BFLOAT16)
  if (packs_bfloat16(type)) {
    return pack_tokens(static_cast<const uint16_t*>(x), rows, columns, first, last, packed);
  }
#endif
  with_type(type, [&]<typename T>(T*) {
    pack_floats(static_cast<const T*>(x), rows, columns, first, last,
                reinterpret_cast<float*>(packed));
  });
}

void linear_quantize_x([[maybe_unused]] const XRange& range, [[maybe_unused]] Phase phase,
                       [[maybe_unused]] const Weights& w, [[maybe_unused]] const QuantizedX& to) {
#if defined(TINYLLM_INTEGERS)
#if !defined(TINYLLM_AMX)  // `quantize_x` makes the layout of tiles
  if (uses_int8_activations(w)) {
    const auto quantize = w.bits == 4 ? quantize_to_int8<4> : quantize_to_int8<8>;
    return quantize(range, w, to);
  }
#endif
  const auto quantize = w.bits == 4 ? quantize_x<4> : quantize_x<8>;
  quantize(range, phase, w, to);
#endif
}

// Decode and integer products have many small parts.
void linear_plan(LinearTask& t, int threads) {
#if defined(TINYLLM_AMX)
  if (t.x_unpacked) return plan_bfloat16(t, threads);
#elif defined(TINYLLM_PACKED_BFLOAT16)
  if (has_packed_bfloat16(t)) return plan_bfloat16(t, threads);
#endif
  if (t.x_integers || t.phase == Phase::decode) {
    int64_t parts = kPartsPerThread * threads;
#if defined(TINYLLM_AMX)
    // With tiles a part begins by filling a pipeline, so parts are larger.
    if (t.x_integers && uses_amx_int8(*t.w, t.phase, t.tokens)) parts /= 4;
#endif
    int64_t unit = W;
#if defined(TINYLLM_INTEGER_GEMM)
    if (t.x_integers && uses_panels(*t.w, t.phase, t.tokens)) unit = kIntegerPanels * W;
#endif
    t.part_rows = ceil_div(ceil_div(t.w->rows, parts), unit) * unit;
    t.part_tokens = t.x_integers ? tokens_for_cache(t, 2 * t.w->columns) : t.tokens;
  } else {
    plan_floats(t, threads);
  }
}

int64_t linear_part_count(const LinearTask& t) {
  return ceil_div(t.w->rows, t.part_rows) * ceil_div(t.tokens, t.part_tokens);
}

LinearRange linear_part_range(const LinearTask& t, int64_t part) {
  const int64_t row_ranges = ceil_div(t.w->rows, t.part_rows);
  const int64_t token = part / row_ranges * t.part_tokens, row = part % row_ranges * t.part_rows;
  return {token, std::min(token + t.part_tokens, t.tokens), row,
          std::min<int64_t>(row + t.part_rows, t.w->rows)};
}

int64_t linear_scratch(const LinearTask& t) {
  const int64_t deinterleaved = reads_w_as_stored(t) ? 0 : deinterleave_floats(*t.w, t.part_rows);
#if defined(TINYLLM_INTEGERS)
  if (t.x_integers) return deinterleaved + integer_scratch(t);
#endif
#if defined(TINYLLM_AMX)
  if (t.x_unpacked) return bfloat16_scratch(t);
#elif defined(TINYLLM_PACKED_BFLOAT16)
  if (has_packed_bfloat16(t)) return deinterleaved + bfloat16_scratch(t);
#endif
  if (t.phase == Phase::decode) return deinterleaved;
  return deinterleaved + float_scratch(t);
}

void linear_part(const LinearTask& t, int64_t part, float* scratch) {
  const LinearRange range = linear_part_range(t, part);
#if defined(TINYLLM_AMX)
  if (t.x_unpacked) return bfloat16_gemm(t, range, scratch);
#endif
  Weights w = *t.w;
  LinearTask task = t;
  task.w = &w;
  if (!reads_w_as_stored(t)) {
    w = deinterleave_rows(*t.w, range.first_row, range.last_row, scratch);
    scratch += deinterleave_floats(*t.w, t.part_rows);
  }
#if defined(TINYLLM_BFLOAT16_GEMV)
  if (has_packed_bfloat16(t) && uses_bfloat16_gemv(w, t.tokens)) {
    return with_codes(w, [&]<Codes C, typename T>() { bfloat16_gemv<C, T>(t, range); });
  }
#endif
#if defined(TINYLLM_INTEGERS)
  if (t.x_integers) {
    return uses_int8_activations(w) ? int8_part(task, range, scratch)
                                    : integer_part(task, range, scratch);
  }
#endif
#if defined(TINYLLM_PACKED_BFLOAT16)
  if (has_packed_bfloat16(t)) return bfloat16_gemm(task, range, scratch);
#endif
  with_format(w, [&]<typename Format>() { float_part<Format>(task, range, scratch); });
}

void embedding_rows(const Weights& w, const int32_t* ids, int64_t first, int64_t last, void* y,
                    Type type) {
  const FloatBuffer row(w.columns);
  const FloatBuffer deinterleaved(w.interleaved ? deinterleave_floats(w, 1) : 0);
  with_format(w, [&]<typename Format>() {
    with_type(type, [&]<typename T>(T*) {
      for (int64_t n = first; n < last; ++n) {
        const uint32_t id = std::min<uint32_t>(ids[n], w.rows - 1);
        const Weights plain =
            w.interleaved ? deinterleave_rows(w, id, id + 1, deinterleaved.get()) : w;
        dequantize_row<Format>(plain, id, 0, w.columns, row.get());
        T* to = static_cast<T*>(y) + n * w.columns;
        for (int k = 0; k < w.columns; ++k) to[k] = from_float<T>(row.get()[k]);
      }
    });
  });
}

void to_floats(const void* from, Type type, float* to, int64_t count) {
  with_type(type, [&]<typename T>(T*) {
    const T* numbers = static_cast<const T*>(from);
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, load_as_floats(numbers + i));
    for (; i < count; ++i) to[i] = to_float(numbers[i]);
  });
}

void group_sums(const float* x, int64_t groups, int group, float* sums) {
  for (int64_t g = 0; g < groups; ++g) {
    Floats total = {};
    for (int i = 0; i < group; i += W) total += load(x + g * group + i);
    sums[g] = sum(total);
  }
}

}  // namespace tinyllm::TINYLLM_ISA
