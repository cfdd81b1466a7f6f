// The checks of all kernels against float64. A failure is printed and counted in `failures`.
#pragma once

#include "check/data/array.h"
#include "dispatch/kernel_table.h"

namespace tinyllm::check {

void check_linear(const KernelTable& kernels, Type type);
void check_attention(const KernelTable& kernels, Type type);
// Both halves of a layer with packed weights: decode steps, and a prompt after cached keys.
void check_layers(const KernelTable& kernels, Type type);
// The mixer of a gated DeltaNet layer, its three steps, and a text cut into passes.
void check_recurrent(const KernelTable& kernels, Type type);
void check_token_choice(const KernelTable& kernels, Type type);
// A forward pass in which one allocation fails. Each failure must reach the caller.
void check_allocations(const KernelTable& kernels);
// The arena of intermediate results.
void check_arena(const KernelTable& kernels);
// Page tables and ids with numbers outside of their arrays.
void check_bounds(const KernelTable& kernels);
// Formats of floats in a process that counts subnormal numbers as zero.
void check_subnormals(const KernelTable& kernels);

}  // namespace tinyllm::check
