// Linear layers: the parts of a task, the layouts of x, and embedding rows.
#include "matmul/linear.h"

#include <algorithm>

#include "ceil_div.h"
#include "isa/float_buffer.h"
#include "isa/load_store.h"
#include "isa/vectors.h"
#include "matmul/bfloat16/mxfp8_gemv.h"
#include "matmul/choose_kernel.h"
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
#elif defined(__AVX512BF16__)
#include "matmul/bfloat16/avx512_gemv.h"
#elif defined(TINYLLM_BFLOAT16)
#include "matmul/bfloat16/neon_gemm.h"
#endif

namespace tinyllm::TINYLLM_ISA {
namespace {

// Bytes of quantized x in a part, about. They stay in the second-level cache beside a panel of w.
constexpr int64_t kTokenRangeBytes = 384 << 10;

// Tokens of a part, a multiple of 32 unless x has fewer rows.
int64_t tokens_for_cache(const LinearTask& t, int64_t token_bytes) {
  return std::min(std::max<int64_t>(kTokenRangeBytes / token_bytes / 32 * 32, 32), t.tokens);
}

// True if the kernel of the task reads w as it is stored. Otherwise rows are deinterleaved first.
bool reads_w_as_stored(const LinearTask& t) {
  if (!t.w->interleaved || t.kernel == LinearKernel::bfloat16_amx) return true;
  const bool reads_codes = quantizes_x(t.kernel) || t.kernel == LinearKernel::bfloat16_gemv ||
                           (t.kernel == LinearKernel::bfloat16_gemm && kHasBFloat16Gemv);
  return reads_codes && t.w->interleaved == W;
}

#if defined(TINYLLM_INTEGERS)

template <int Bits>
void quantize_for(LinearKernel kernel, const XRange& range, const Weights& w,
                  const QuantizedX& to) {
  switch (kernel) {
#if defined(TINYLLM_AMX)
    case LinearKernel::integer_amx:
      return quantize_for_amx<Bits, 2>(range, w, to);
    case LinearKernel::int8_gemv:
    case LinearKernel::int8_amx:
      return quantize_for_amx<Bits, 1>(range, w, to);
#else
    case LinearKernel::int8_gemv:
    case LinearKernel::int8_gemm:
      return quantize_to_int8<Bits>(range, w, to);
#endif
#if defined(TINYLLM_INTEGER_GEMM)
    case LinearKernel::integer_gemm:
      return quantize_for_gemm<Bits>(range, w, to);
#endif
    default:
      return quantize_for_gemv<Bits>(range, w, to);
  }
}

#endif

}  // namespace

LinearKernel linear_kernel(const Weights& w, Type type, Phase phase, int64_t tokens) {
  return choose_kernel(w, type, phase, tokens);
}

int linear_interleaved_rows(const Weights& w) {
  return supports_integers(w) && w.rows % W == 0 ? W : 0;
}

bool linear_reads_x_unpacked(Type type) { return kHasAmx && type == Type::bfloat16; }

int64_t linear_packed_words(Type type, int columns) {
  return packs_bfloat16(type) ? packed_pairs(columns) : columns;
}

void linear_pack_x(const void* x, Type type, int64_t rows, int columns, int64_t first, int64_t last,
                   uint32_t* packed) {
#if defined(TINYLLM_BFLOAT16) && !defined(TINYLLM_AMX)
  if (packs_bfloat16(type)) {
    return pack_tokens(static_cast<const uint16_t*>(x), rows, columns, first, last, packed);
  }
#endif
  with_type(type, [&]<typename T>(T*) {
    pack_floats(static_cast<const T*>(x), rows, columns, first, last,
                reinterpret_cast<float*>(packed));
  });
}

void linear_quantize_x([[maybe_unused]] LinearKernel kernel, [[maybe_unused]] const XRange& range,
                       [[maybe_unused]] const Weights& w, [[maybe_unused]] const QuantizedX& to) {
#if defined(TINYLLM_INTEGERS)
  const auto quantize = w.bits == 4 ? quantize_for<4> : quantize_for<8>;
  quantize(kernel, range, w, to);
#endif
}

void linear_plan(LinearTask& t, int64_t parts) {
  int64_t unit = W;
  switch (t.kernel) {
    case LinearKernel::float_gemm:
      return plan_floats(t, parts);
#if defined(TINYLLM_BFLOAT16)
    case LinearKernel::bfloat16_gemv:
    case LinearKernel::bfloat16_gemm:
    case LinearKernel::bfloat16_amx:
      return plan_bfloat16(t, parts);
#endif
#if defined(TINYLLM_INTEGER_GEMM)
    case LinearKernel::integer_gemm:
    case LinearKernel::int8_gemm:
      unit = kIntegerPanels * W;
      break;
#endif
    case LinearKernel::integer_amx:
    case LinearKernel::int8_amx:
      parts = ceil_div(parts, 4);  // with tiles a part begins by filling a pipeline
      break;
    default:
      parts = ceil_div(parts, 2);  // a part takes 0.1 microseconds beside its rows
      break;
  }
  t.part_rows = ceil_div(ceil_div(t.w->rows, parts), unit) * unit;
  t.part_tokens = quantizes_x(t.kernel) ? tokens_for_cache(t, 2 * t.w->columns) : t.tokens;
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
  int64_t floats = reads_w_as_stored(t) ? 0 : deinterleave_floats(*t.w, t.part_rows);
  if (quantizes_x(t.kernel) && t.w->interleaved != W) floats += RowSizes(*t.w).floats(W);
  switch (t.kernel) {
    case LinearKernel::float_gemm:
      return floats + float_scratch(t);
#if defined(TINYLLM_BFLOAT16)
    case LinearKernel::bfloat16_gemv:
    case LinearKernel::bfloat16_gemm:
    case LinearKernel::bfloat16_amx:
      return floats + bfloat16_scratch(t);
#endif
#if defined(TINYLLM_INTEGER_GEMM)
    case LinearKernel::integer_gemm:
    case LinearKernel::int8_gemm:
      return floats + integer_gemm_floats(t);
#endif
    default:
      return floats;
  }
}

void linear_part(const LinearTask& t, int64_t part, float* scratch) {
  const LinearRange range = linear_part_range(t, part);
  Weights w = *t.w;
  LinearTask task = t;
  task.w = &w;
  if (!reads_w_as_stored(t)) {
    w = deinterleave_rows(*t.w, range.first_row, range.last_row, scratch);
    scratch += deinterleave_floats(*t.w, t.part_rows);
  }
  switch (t.kernel) {
    case LinearKernel::float_gemv:
      return with_format(w, [&]<typename Format>() { float_gemv<Format>(task, range); });
    case LinearKernel::float_gemm:
      return with_format(w, [&]<typename Format>() { float_gemm<Format>(task, range, scratch); });
#if defined(TINYLLM_E4M3_PAIRS)
    case LinearKernel::mxfp8_gemv:
      return mxfp8_gemv(task, range);
#endif
#if defined(__AVX512BF16__) && !defined(TINYLLM_AMX)
    case LinearKernel::bfloat16_gemv:
      return with_codes(w, [&]<Codes C, typename T>() { bfloat16_gemv<C, T>(task, range); });
#endif
#if defined(TINYLLM_BFLOAT16)
    case LinearKernel::bfloat16_gemm:
    case LinearKernel::bfloat16_amx:
      return bfloat16_gemm(task, range, scratch);
#endif
#if defined(TINYLLM_INTEGERS)
    case LinearKernel::integer_gemv:
    case LinearKernel::integer_gemm:
    case LinearKernel::integer_amx:
      return integer_part(task, range, scratch);
    case LinearKernel::int8_gemv:
    case LinearKernel::int8_gemm:
    case LinearKernel::int8_amx:
      return int8_part(task, range, scratch);
#endif
    default:
      return;  // `choose_kernel` chooses no other
  }
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
