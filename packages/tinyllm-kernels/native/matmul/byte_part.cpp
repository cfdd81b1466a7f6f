// Products of integers with x in 8 bits.
#include "isa/tile_registers.h"
#include "matmul/integer/byte_blocks.h"
#include "matmul/integer_parts.h"

#if defined(TINYLLM_TILES)
#include "matmul/integer/amx.h"
#endif

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_INTEGERS)

void byte_part(const LinearTask& t, const LinearRange& range, float* scratch) {
  with_codes(*t.w, [&]<Codes C, typename T>() {
#if defined(TINYLLM_TILES)
    if (uses_byte_tiles(*t.w, t.phase, t.rows)) {
      return multiply_integer_rows_in_tiles<C, 1>(t, range, scratch);
    }
#endif
#if defined(TINYLLM_BYTE_BLOCKS)
    if constexpr (kBits<C> == 4) {  // see avx2.h
      if (uses_byte_blocks(*t.w, t.rows)) return multiply_byte_blocks<C, T>(t, range, scratch);
      multiply_bytes<C, T>(t, range, scratch);
    }
#else
    multiply_bytes<C, T>(t, range, scratch);
#endif
  });
}

#endif

}  // namespace tinyllm::TINYLLM_ISA
