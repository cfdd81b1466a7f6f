// Products of integers with x in 15 bits, as two planes of bytes or as numbers of 16 bits.
#include "matmul/integer_parts.h"

#include "isa/tile_registers.h"
#include "matmul/integer/gemm.h"
#include "matmul/integer/gemv.h"

#if defined(TINYLLM_AMX)
#include "matmul/integer/amx_gemm.h"
#endif

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_INTEGERS)

void integer_part(const LinearTask& t, const LinearRange& range, float* scratch) {
  with_codes(*t.w, [&]<Codes C, typename T>() {
#if defined(TINYLLM_AMX)
    if (t.kernel == LinearKernel::integer_amx) return amx_integer_gemm<C, 2>(t, range, scratch);
#endif
#if defined(TINYLLM_INTEGER_GEMM)
    if (t.kernel == LinearKernel::integer_gemm) {
      return integer_gemm<Int16Products<C>, C, T>(t, range, scratch);
    }
#endif
    integer_gemv<C, T>(t, range, scratch);
  });
}

#endif

}  // namespace tinyllm::TINYLLM_ISA
