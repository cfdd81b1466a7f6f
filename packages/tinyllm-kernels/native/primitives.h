// The kernels as primitives of MLX: lazy, on MLX's CPU streams. Arguments are those of the contract
// (tinyllm_ops.OpSet), which Python has checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mlx/array.h"

namespace tinyllm {

// A weight: `w` dense, or codes with scales and, in mode "affine", biases.
struct WeightArrays {
  mlx::core::array w;
  std::optional<mlx::core::array> scales, biases;
  int group_size, bits;
  std::string mode;
};

// x `*batch K` times w `N K`, plus bias `N`.
mlx::core::array linear(const mlx::core::array& x, const WeightArrays& w,
                        const std::optional<mlx::core::array>& bias);

// Each row of x `R K` times the matrix of its own expert in w `X N K`; experts `R` of int32 ascend.
mlx::core::array expert_linear(const mlx::core::array& x, const WeightArrays& w,
                               const mlx::core::array& experts);

mlx::core::array rms_norm(const mlx::core::array& x, const mlx::core::array& weight, float eps);

mlx::core::array swiglu(const mlx::core::array& gate, const mlx::core::array& up);

// x `B L H D`, positions `1 L` or `B L` of int32, frequencies `D/2` of float32.
mlx::core::array rope(const mlx::core::array& x, const mlx::core::array& positions,
                      const mlx::core::array& frequencies, bool traditional, float magnitude);

// q `B H L D`, k and v `B Hkv S D`; mask additive, of any shape that was broadcast to `B H L S`.
mlx::core::array attention(const mlx::core::array& q, const mlx::core::array& k,
                           const mlx::core::array& v, float scale, bool causal,
                           const std::optional<mlx::core::array>& mask);

}  // namespace tinyllm
