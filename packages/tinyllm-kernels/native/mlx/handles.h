// Handles: the weights of a layer's halves, prepared once and used for every token.
//
// A handle evaluates its arrays, makes them contiguous and keeps their addresses. A layer has about
// twenty arrays. As inputs of each primitive they would be inspected again for every token.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/recurrent/delta_net.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {

struct NormArrays {
  mlx::core::array weight;
  float eps;
};

// Evaluated, contiguous arrays, kept alive for as long as this object lives.
class EvaluatedArrays {
 public:
  // Returns the data of an array, or null if there is none.
  const void* keep(const std::optional<mlx::core::array>& array);

  // Returns a weight with `columns` columns.
  Weights keep(const WeightArrays& w, int columns);

  // Returns a norm, or a norm without a weight if there is none.
  Norm keep(const std::optional<NormArrays>& norm);

 private:
  std::vector<mlx::core::array> arrays_;
};

struct ProjectionArrays {
  WeightArrays weight;
  std::optional<mlx::core::array> bias;
};

struct RopeArrays {
  mlx::core::array frequencies;  // of each pair, float32, in radians a token
  bool traditional;
  float magnitude;
};

// The weights of an MLP.
class MlpHandle : public FeedForward {
 public:
  MlpHandle(const NormArrays& norm, const WeightArrays& gate, const WeightArrays& up,
            const WeightArrays& down, bool adds_residual);

  void run(const KernelTable& kernels, const Rows& rows, void* y) const override;

 private:
  EvaluatedArrays arrays_;
  MlpTask task_{};
  bool adds_residual_;  // true if x is added to the result
};

struct SharedExpertArrays {
  WeightArrays gate, up, down, shared_gate;
};

// The weights of a mixture of experts.
class MoeHandle : public FeedForward {
 public:
  // Throws std::invalid_argument unless 1 <= experts_per_token <= rows of the router <= number of
  // experts.
  MoeHandle(const NormArrays& norm, const WeightArrays& router, const WeightArrays& gate,
            const WeightArrays& up, const WeightArrays& down, int experts_per_token,
            bool normalizes_routing_weights, const std::optional<SharedExpertArrays>& shared);

  void run(const KernelTable& kernels, const Rows& rows, void* y) const override;

 private:
  Experts keep(const WeightArrays& w, int columns);

  EvaluatedArrays arrays_;
  MoeTask task_{};
};

// The weights of the attention half of a layer.
class AttentionHandle {
 public:
  AttentionHandle(const NormArrays& norm, const ProjectionArrays& q, const ProjectionArrays& k,
                  const ProjectionArrays& v, const ProjectionArrays& o, int head_dim,
                  const RopeArrays& rope, const std::optional<NormArrays>& q_norm,
                  const std::optional<NormArrays>& k_norm, const std::optional<WeightArrays>& gate);

  // The projections of x, without x, positions and outputs.
  const ProjectTask& projection() const { return projection_; }

  // Returns the task for the rows at `x`, an array of shape B L E. `Task` is AttentionLayerTask or
  // PagedAttentionLayerTask. The caller sets the cache, positions and output.
  template <typename Task>
  Task task(const Input& shape, const void* x, Type type, OptionalPhase phase) const;

 private:
  EvaluatedArrays arrays_;
  ProjectTask projection_{};
  Weights o_;
  const void* o_bias_;
};

struct DeltaNetArrays {
  WeightArrays qkv, z, b, a, o;
  mlx::core::array conv, a_log, dt_bias;  // C K, Hv of float32, Hv
  NormArrays norm;                        // of the heads: Dv
};

// The weights of the mixer half of a gated DeltaNet layer.
class DeltaNetHandle {
 public:
  // Throws std::invalid_argument if the convolution is too wide.
  DeltaNetHandle(const NormArrays& norm, const DeltaNetArrays& weights, int key_heads, int key_dim);

  // Throws std::invalid_argument unless x and the states of all slots fit the layer.
  void check(const mlx::core::array& x, const mlx::core::array& conv_state,
             const mlx::core::array& state) const;

  // Runs the half on rows with a convolution state and a state for each slot.
  void run(const KernelTable& kernels, const Rows& rows, char* conv_state, char* state,
           const StateSlots& slots, void* y) const;

 private:
  EvaluatedArrays arrays_;
  DeltaNetTask task_{};
  std::vector<float> taps_, rates_, dt_bias_;
};

// Both halves of a layer.
struct LayerHandle {
  std::shared_ptr<AttentionHandle> attention;  // or null
  std::shared_ptr<DeltaNetHandle> delta_net;   // in the place of attention, or null
  std::shared_ptr<FeedForward> feed_forward;
};

// Consecutive layers, shared by all primitives that compute them.
using LayerGroup = std::shared_ptr<const std::vector<LayerHandle>>;

}  // namespace tinyllm
