// Attention against float64.
#pragma once

#include "check/array.h"
#include "dispatch/kernels.h"

namespace tinyllm::check {

void check_attention(const Kernels& kernels, Type type);

// --- check/blocks.h
// Both halves of a block, with packed weights, against float64.

// For decoded tokens and for a text behind cached keys.
void check_blocks(const Kernels& kernels, Type type);

// --- check/choice.h
// What is chosen from scores against float64.

void check_choice(const Kernels& kernels, Type type);

// --- check/linear.h
// Products of matrices, whatever the kernels make of their size.

void check_linear(const Kernels& kernels, Type type);

}  // namespace tinyllm::check
