// Parts of products of integers. Each function has a file of its own, because its kernels take longer
// to compile than all other products.
#pragma once

#include "matmul/linear.h"

namespace tinyllm::TINYLLM_ISA {

// Computes a part with x in 15 bits, or in int8. w is a matrix that `supports_integers`. `scratch`
// has memory for W interleaved rows, and for the results of matmul/integer/gemm.h.
void integer_part(const LinearTask& t, const LinearRange& range, float* scratch);
void int8_part(const LinearTask& t, const LinearRange& range, float* scratch);

}  // namespace tinyllm::TINYLLM_ISA
