// The kernels as primitives of MLX: lazy, on MLX's CPU streams. Arguments are those of the contract
// (tinyllm_ops.OpSet), which Python has checked.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <mlx/array.h>
#include "mlx/handles.h"
#include "mlx/inputs.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {

// How many rows of w products want side by side (see matmul/interleave.h); 0 is none.
int interleaves(const WeightArrays& w);

// A part of a weight, `*lead N width` of 16 or 32 bits, with so many rows side by side: in the same
// memory, if nobody else holds it.
mlx::core::array interleave(const mlx::core::array& part, int side);

// x `*batch K` times w `N K`, plus bias `N`, plus residual `*batch N`. Here and below the shape of x
// decides where no phase is given: see `phase_of`.
mlx::core::array linear(const mlx::core::array& x, const WeightArrays& w,
                        const std::optional<mlx::core::array>& bias,
                        const std::optional<mlx::core::array>& residual, OptionalPhase phase);

// Each row of x `*batch K` times the matrix of its own expert in w `X N K`; experts `*batch` of int32
// ascend. An expert that w does not have is read as the last one.
mlx::core::array expert_linear(const mlx::core::array& x, const WeightArrays& w,
                               const mlx::core::array& experts, OptionalPhase phase);

mlx::core::array rms_norm(const mlx::core::array& x, const mlx::core::array& weight, float eps);

mlx::core::array swiglu(const mlx::core::array& gate, const mlx::core::array& up);

// x `B L H D`, positions `1 L` or `B L` of int32, frequencies `D/2` of float32.
mlx::core::array rope(const mlx::core::array& x, const mlx::core::array& positions,
                      const mlx::core::array& frequencies, bool traditional, float magnitude);

// The index of the largest of each row of x `*batch V`, as int32 `*batch`.
mlx::core::array argmax(const mlx::core::array& x);

// The k best of each row of x `*batch V`, the best first, and their indices as int32.
std::vector<mlx::core::array> top_k(const mlx::core::array& x, int k);

// log softmax of x `*batch V` at ids `*batch K` of int32, in float32.
mlx::core::array log_probability(const mlx::core::array& x, const mlx::core::array& ids);

// q `B H L D`, k and v `B Hkv S D`; mask additive, of any shape that was broadcast to `B H L S`.
mlx::core::array attention(const mlx::core::array& q, const WeightArrays& k, const WeightArrays& v,
                           float scale, bool causal, const std::optional<mlx::core::array>& mask,
                           OptionalPhase phase);

// q `T H D`, k and v `P Hkv page D`; block_table `R blocks`, query_starts `R+1` and context_lengths
// `R` of int32; a window of 0 is none.
mlx::core::array paged_attention(const mlx::core::array& q, const WeightArrays& k,
                                 const WeightArrays& v, const mlx::core::array& block_table,
                                 const mlx::core::array& query_starts,
                                 const mlx::core::array& context_lengths, float scale, int window,
                                 OptionalPhase phase);

// What leaves the half of a block that x `*batch E` enters.
mlx::core::array feed_forward(const mlx::core::array& x, std::shared_ptr<FeedForward> half,
                              OptionalPhase phase);

// Queries `B H L D`, keys and values `B Hkv L D` of x `B L E` at positions `1 L` or `B L` of int32.
std::vector<mlx::core::array> attention_inputs(const mlx::core::array& x,
                                               std::shared_ptr<AttentionWeights> block,
                                               const mlx::core::array& positions,
                                               OptionalPhase phase);

// What leaves the last of the blocks; then keys and values of each, `B Hkv capacity D`, with those of x
// from `offset` on.
std::vector<mlx::core::array> blocks(const mlx::core::array& x, std::vector<BlockWeights> blocks,
                                     const std::vector<mlx::core::array>& stores, int offset,
                                     OptionalPhase phase);

// tinyllm_ops.PagedTokens, all of int32.
struct PagedTokensArrays {
  mlx::core::array block_table, query_starts, context_lengths, positions, slots;
};

// What leaves the last of the blocks; then the arrays of keys and of values of each, `P Hkv page D`,
// with those of x.
std::vector<mlx::core::array> paged_blocks(const mlx::core::array& x,
                                           std::vector<BlockWeights> blocks,
                                           const std::vector<WeightArrays>& stores,
                                           const PagedTokensArrays& pages, int window,
                                           OptionalPhase phase);

// Rows `ids` (int32, of any shape) of the table w `V E`, in the type `dtype`.
mlx::core::array embedding(const mlx::core::array& ids, const WeightArrays& w,
                           mlx::core::Dtype dtype);

}  // namespace tinyllm
