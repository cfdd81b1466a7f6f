// A forward pass through all kinds of layers, and the choice of a token.
#pragma once

#include <cstdint>
#include <vector>

#include "check/data/layer.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/token_choice.h"

namespace tinyllm::check {

// Both halves of a layer, with an MLP and with a mixture of experts, and the choice of a token.
struct Model {
  explicit Model(Type type) : sequence(type, kTokens, 21), norm(Array::random(type, E)) {}

  // Computes everything. Returns the bytes of all results.
  std::vector<char> compute(const KernelTable& kernels, Phase phase) {
    sequence.compute(kernels, phase);
    const Type type = sequence.type;
    const void* x = sequence.y.bytes.data();
    const Norm n{norm.bytes.data(), kEps};
    run_mlp(kernels,
            MlpTask{x, x, kTokens, phase, n, gate.w, up.w, down.w, mlp_y.bytes.data(), type});
    const auto stack = [](const Matrix& m, int64_t rows) {
      Weights first = m.w;
      first.rows = static_cast<int>(rows);
      const int64_t groups = rows * (m.w.columns / m.w.group) * size_of(m.w.type);
      return Experts{first, rows * m.w.columns * m.w.bits / 8, groups, groups};
    };
    const SharedExpert shared{gate.w, up.w, down.w, shared_gate.w};
    run_moe(kernels, MoeTask{x, kTokens, phase, n, router.w, stack(gate, F / kExperts),
                             stack(up, F / kExperts), stack(expert_down, E), 2, true, shared,
                             moe_y.bytes.data(), type});
    const ScoreRows scores{moe_y.bytes.data(), kTokens, E, type};
    std::vector<int32_t> best(kTokens), top(kTokens * 3);
    std::vector<float> logarithms(kTokens * 3);
    Array top_scores(type, kTokens * 3);
    argmax(kernels, scores, best.data());
    top_k(kernels, scores, 3, top_scores.bytes.data(), top.data());
    log_probability(kernels, scores, top.data(), 3, logarithms.data());
    std::vector<char> bytes = sequence.y.bytes;
    bytes.insert(bytes.end(), mlp_y.bytes.begin(), mlp_y.bytes.end());
    bytes.insert(bytes.end(), moe_y.bytes.begin(), moe_y.bytes.end());
    for (const int32_t token : best) bytes.push_back(static_cast<char>(token));
    return bytes;
  }

  static constexpr int kTokens = 5, kExperts = 4;

  Sequence sequence;
  Array norm;
  Matrix gate = packed(F, E, sequence.type), up = packed(F, E, sequence.type);
  Matrix down = packed(E, F, sequence.type), router = packed(kExperts, E, sequence.type);
  Matrix shared_gate = packed(1, E, sequence.type);
  Matrix expert_down = packed(kExperts * E, F / kExperts, sequence.type);
  Array mlp_y = Array(sequence.type, kTokens * E), moe_y = Array(sequence.type, kTokens * E);
};

}  // namespace tinyllm::check
