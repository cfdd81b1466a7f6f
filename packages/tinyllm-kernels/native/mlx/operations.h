// The kernels as operations on MLX arrays: lazy, on MLX's CPU streams.
//
// Arguments are those of the contract `tinyllm_ops.OpSet`. Python has checked them, except where a
// function states an exception. Where `phase` has no value the shape of x decides: see `phase_of`.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include <mlx/array.h>

#include "mlx/handles.h"
#include "mlx/inputs.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {

class Loan;  // mlx/loan.h

// The width of the codes to which integer products widen affine codes.
inline int integer_bits(int bits) { return bits <= 4 ? 4 : 8; }

// Returns how w should be stored for the fastest product: the number of rows to interleave (see
// matmul/interleave.h), or 0 for plain rows, and the width of its codes.
std::tuple<int, int> fastest_layout(const WeightArrays& w);

// Widens packed affine codes of 2, 3, 5 or 6 bits, `*lead words` of uint32, to `integer_bits`.
mlx::core::array widen(const mlx::core::array& packed, int bits);

// True if products with w quantize x to int8.
bool uses_int8_activations(const WeightArrays& w);

// Makes zeros, in huge pages if the system gives some.
mlx::core::array zeros(const std::vector<int>& shape, mlx::core::Dtype dtype);

// Interleaves groups of `rows` rows of one array of a weight, `*lead N width` of 8, 16 or 32 bits.
// Works in place if no other array shares the memory.
mlx::core::array interleave(const mlx::core::array& array, int rows);

// x `*batch K` times w `N K`, plus bias `N`, plus residual `*batch N`: returns `*batch N`.
mlx::core::array linear(const mlx::core::array& x, const WeightArrays& w,
                        const std::optional<mlx::core::array>& bias,
                        const std::optional<mlx::core::array>& residual, OptionalPhase phase);

// Multiplies each row of x `*batch K` with the matrix of its expert in w `X N K`. `experts`,
// `*batch` of int32, ascend. An expert that w does not have is read as the last one.
mlx::core::array expert_linear(const mlx::core::array& x, const WeightArrays& w,
                               const mlx::core::array& experts, OptionalPhase phase);

mlx::core::array rms_norm(const mlx::core::array& x, const mlx::core::array& weight, float eps);

// x sigmoid(gate).
mlx::core::array output_gate(const mlx::core::array& x, const mlx::core::array& gate);

mlx::core::array swiglu(const mlx::core::array& gate, const mlx::core::array& up);

// x `B L H D`, positions `1 L` or `B L` of int32, frequencies of each pair in float32. Features
// beyond the pairs are not changed.
mlx::core::array rope(const mlx::core::array& x, const mlx::core::array& positions,
                      const mlx::core::array& frequencies, bool traditional, float magnitude);

// The index of the largest number of each row of x `*batch V`, as int32 `*batch`.
mlx::core::array argmax(const mlx::core::array& x);

// The k largest numbers of each row of x `*batch V`, largest first, and their indices as int32.
std::vector<mlx::core::array> top_k(const mlx::core::array& x, int k);

// log softmax of x `*batch V` at ids `*batch K` of int32, in float32.
mlx::core::array log_probability(const mlx::core::array& x, const mlx::core::array& ids);

// q `B H L D`, k and v `B Hkv S D`; mask additive, broadcast to `B H L S` without a copy.
mlx::core::array attention(const mlx::core::array& q, const WeightArrays& k, const WeightArrays& v,
                           float scale, bool causal, const std::optional<mlx::core::array>& mask,
                           OptionalPhase phase);

// q `T H D`, k and v `P Hkv page D`; block_tables `R pages`, cu_seqlens_q `R+1` and seq_lens `R` of
// int32. A window of 0 is no window.
mlx::core::array paged_attention(const mlx::core::array& q, const WeightArrays& k,
                                 const WeightArrays& v, const mlx::core::array& block_tables,
                                 const mlx::core::array& cu_seqlens_q,
                                 const mlx::core::array& seq_lens, float scale, int window,
                                 OptionalPhase phase);

// The feed-forward half of a layer for x `*batch E`.
mlx::core::array feed_forward(const mlx::core::array& x, std::shared_ptr<FeedForward> handle,
                              OptionalPhase phase);

// Queries `B H L D`, keys and values `B Hkv L D` of x `B L E` at positions `1 L` or `B L` of int32.
// A layer with an output gate also has gates `B L H*D`.
// Throws std::invalid_argument if x or positions do not fit.
std::vector<mlx::core::array> project_qkv(const mlx::core::array& x,
                                          std::shared_ptr<AttentionHandle> handle,
                                          const mlx::core::array& positions, OptionalPhase phase);

// The arrays of `tinyllm_ops.StateTable`, all of int32.
struct StateTableArrays {
  mlx::core::array cu_seqlens, load_slots, save_slots;
};

// The states of the recurrent layers of a group: for each of them inputs of its convolution
// `P K-1 C` and states `P Hv Dv Dk`, and the index of its table.
struct GroupStateArrays {
  std::vector<mlx::core::array> arrays;
  std::vector<StateTableArrays> tables;
  std::vector<int> table_of_layer;
};

// Runs layers on x `B L E` with a dense cache of each attention layer, `B 2 Hkv capacity D`: keys and
// values. Returns the result, the caches with the tokens of x from `offset` on, and the states.
// Caches and states that no other array shares are changed in place. Throws std::invalid_argument if
// x does not fit into the caches.
std::vector<mlx::core::array> layers(const mlx::core::array& x, LayerGroup layers,
                                     const std::vector<mlx::core::array>& caches,
                                     const GroupStateArrays& states, int offset,
                                     OptionalPhase phase);

// Runs the layers of a loan of their dense caches, like the function above.
mlx::core::array layers(const mlx::core::array& x, LayerGroup layers, Loan& loan, int offset,
                        OptionalPhase phase);

// The ops of gated DeltaNet. The states `slots ...` are changed in place if no other array shares
// them. Both return the result and the states.
std::vector<mlx::core::array> causal_conv(const mlx::core::array& x, const mlx::core::array& weight,
                                          const mlx::core::array& state,
                                          const StateTableArrays& table);
std::vector<mlx::core::array> gated_delta(const mlx::core::array& q, const mlx::core::array& k,
                                          const mlx::core::array& v, const mlx::core::array& a,
                                          const mlx::core::array& b, const mlx::core::array& a_log,
                                          const mlx::core::array& dt_bias,
                                          const mlx::core::array& state,
                                          const StateTableArrays& table);

mlx::core::array gated_rms_norm(const mlx::core::array& x, const mlx::core::array& gate,
                                const mlx::core::array& weight, float eps);

// The arrays of `tinyllm_ops.PageTable`, all of int32.
struct PageTableArrays {
  mlx::core::array block_tables, cu_seqlens_q, seq_lens, positions, slot_mapping;
};

// The format of pages: numbers of the dtype of x if `bits` is 0, or else codes in mode "affine".
struct PageFormat {
  int group_size, bits;
};

// Runs layers on x `B L E` with pages of keys and of values of each attention layer, `P Hkv page
// D`: one array, or codes, scales and biases. Returns the result, the pages with the tokens of x,
// and the states. Pages and states that no other array shares are changed in place. Pages
// `without_tokens` may be one number that is repeated by strides of zero: they are new then, and
// stay uninitialized beside the tokens of x. Throws std::invalid_argument if x, caches and page
// table do not fit together.
std::vector<mlx::core::array> paged_layers(const mlx::core::array& x, LayerGroup layers,
                                           const std::vector<mlx::core::array>& caches,
                                           const GroupStateArrays& states, const PageFormat& format,
                                           const PageTableArrays& pages, int window,
                                           OptionalPhase phase, bool without_tokens = false);

// Runs the layers of a loan of their pages, like the function above.
mlx::core::array paged_layers(const mlx::core::array& x, LayerGroup layers, Loan& loan,
                              const PageFormat& format, const PageTableArrays& pages, int window,
                              OptionalPhase phase, bool without_tokens = false);

// Rows `ids` (int32, of any shape) of the table w `V E`, converted to `dtype`. An id outside of the
// table is read as the last row.
mlx::core::array embedding(const mlx::core::array& ids, const WeightArrays& w,
                           mlx::core::Dtype dtype);

}  // namespace tinyllm
