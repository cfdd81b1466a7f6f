// Tasks of the recurrent kernels: causal convolution, gated delta rule, gated RMSNorm.
//
// A task points to memory that its caller owns. T tokens of a pass belong to sequences, and each
// sequence computes its tokens in their order. The bits of a token do not depend on how a text is cut
// into passes, or on other sequences.
#pragma once

#include <cstdint>

#include "types.h"

namespace tinyllm {

// The sequences of a pass and the slots of their states. Slots outside of 0 .. `slots` - 1 stand for
// none, and tokens outside of the pass are ignored.
struct StateSlots {
  const int32_t* cu_seqlens;  // n + 1: sequence i has the tokens cu_seqlens[i] to cu_seqlens[i + 1]
  const int32_t* loads;       // n: the slot of the state before a sequence, or -1 for zeros
  const int32_t* saves;       // T: the slot that gets the state after a token, or -1
  int64_t sequences, tokens, slots;
};

// y = silu(the sum over j of taps[j] * the input K-1-j tokens before), channel by channel. A state is
// the last K-1 inputs, the oldest first.
struct CausalConvTask {
  const void* x;      // T C
  int64_t x_stride;   // numbers from a token of x to the next
  void* y;            // T C
  const float* taps;  // K C
  int64_t channels;   // C
  int64_t width;      // K, from 2 to kMaxConvWidth
  void* state;        // slots K-1 C
  StateSlots slots;
  Type type;  // of x, y and state
};

inline constexpr int64_t kMaxConvWidth = 16;

// The gated delta rule. q and k of a head are divided by their length, and q also by sqrt(Dk). For
// each value head, with the keys of head h / (Hv / Hk), decay = exp(-rate * softplus(a + dt_bias)):
//
//   S = S * decay;  S += ((v - S k) * sigmoid(b)) k^T;  o = S q
struct GatedDeltaTask {
  const void *q, *k;                     // T Hk Dk
  const void* v;                         // T Hv Dv
  int64_t q_stride, k_stride, v_stride;  // numbers from a token to the next
  const void *a, *b;                     // T Hv
  const float* rates;                    // Hv
  const float* dt_bias;                  // Hv
  void* o;                               // T Hv Dv
  int64_t key_heads, value_heads, key_dim, value_dim;
  float* state;  // slots Hv Dv Dk
  StateSlots slots;
  Type type;  // of q, k, v, a, b and o
};

// y = x / sqrt(mean(x^2) + eps) * weight * silu(gate), row by row, rounded once.
struct GatedNormTask {
  const void* x;       // rows D
  const void* gate;    // rows D
  const void* weight;  // D
  void* y;             // rows D; it may be x
  int64_t width;       // D
  float eps;
  Type type;  // of x, gate, weight and y
};

// The three in one: the convolution gives q, k and v side by side (C = 2 Hk Dk + Hv Dv), and the
// norm takes o. `conv.y`, `delta.q`, `delta.k`, `delta.v`, `delta.o` and `norm.x` are not used. The
// slots, the type and the width of the norm are those of `delta`.
struct MixerTask {
  CausalConvTask conv;
  GatedDeltaTask delta;
  GatedNormTask norm;
  int64_t gate_stride, y_stride;  // numbers from a token to the next in `norm.gate` and `norm.y`
};

}  // namespace tinyllm
