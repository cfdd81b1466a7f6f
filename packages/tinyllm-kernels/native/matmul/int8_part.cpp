// Products of integers with x in int8.
#include "isa/tile_registers.h"
#include "matmul/integer/gemm.h"
#include "matmul/integer/int8_gemv.h"
#include "matmul/integer_parts.h"

#if defined(TINYLLM_AMX)
#include "matmul/integer/amx_gemm.h"
#endif

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_INTEGERS)

void int8_part(const LinearTask& t, const LinearRange& range, float* scratch) {
  with_codes(*t.w, [&]<Codes C, typename T>() {
    // `uses_int8_activations` excludes all other codes and scales.
    if constexpr (kHasInt8Products<kBits<C>> && !std::is_same_v<T, E4M3>) {
#if defined(TINYLLM_AMX)
      if (t.kernel == LinearKernel::int8_amx) return amx_integer_gemm<C, 1>(t, range, scratch);
#endif
#if defined(TINYLLM_INT8_GEMM)
      if (t.kernel == LinearKernel::int8_gemm) {
        return integer_gemm<Int8Products<C>, C, T>(t, range, scratch);
      }
#endif
      int8_gemv<C, T>(t, range, scratch);
    }
  });
}

#endif

}  // namespace tinyllm::TINYLLM_ISA
