// A small attention layer with packed weights, and one sequence.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "check/data/array.h"
#include "check/data/matrix.h"
#include "layers/attention.h"

namespace tinyllm::check {

inline constexpr float kEps = 1e-6f;
inline constexpr int E = 128, F = 256, H = 4, Hkv = 2, D = 32;

// A packed matrix with scales so small that products have about the size of x.
inline Matrix packed(int rows, int columns, Type type) {
  Matrix matrix(rows, columns, 4, 32, type);
  for (Array* part : {&matrix.scales, &matrix.biases}) {
    for (int64_t i = 0; i < int64_t{rows} * columns / 32; ++i) part->set(i, part->at(i) / 64);
  }
  return matrix;
}

// A sequence of `offset` cached tokens and `length` new ones.
struct Sequence {
  Sequence(Type type, int length, int offset)
      : type(type), length(length), offset(offset), capacity(offset + length + 2) {
    std::iota(positions.begin(), positions.end(), offset);
    for (int i = 0; i < D / 2; ++i) {
      frequencies[i] = static_cast<float>(std::pow(1e4, -2.0 * i / D));
    }
  }

  Heads heads_of(Array& cache) const {
    return {cache.bytes.data(), {int64_t{Hkv} * capacity * D, int64_t{capacity} * D, D}};
  }

  // The projections without their outputs.
  ProjectTask projection(Phase phase) const {
    ProjectTask task{};
    task.x = x.bytes.data(), task.batch = 1, task.length = length, task.phase = phase;
    task.norm = {norm.bytes.data(), kEps};
    task.q_norm = {q_norm.bytes.data(), kEps}, task.k_norm = {k_norm.bytes.data(), kEps};
    task.q = q.w, task.k = k.w, task.v = v.w, task.q_bias = q_bias.bytes.data();
    task.heads = H, task.kv_heads = Hkv, task.dim = D;
    task.positions = {positions.data(), length, true};
    task.rope = {frequencies.data(), D / 2, false, 1}, task.type = type;
    return task;
  }

  void compute(const KernelTable& kernels, Phase phase) {
    AttentionLayerTask task{};
    task.projection = projection(phase);
    task.keys = heads_of(keys), task.values = heads_of(values);
    task.o = o.w, task.y = y.bytes.data();
    task.offset = offset, task.scale = 1 / std::sqrt(static_cast<float>(D));
    run_attention_layer(kernels, task);
  }

  Type type;
  int length, offset, capacity;
  std::vector<int32_t> positions = std::vector<int32_t>(length);
  std::vector<float> frequencies = std::vector<float>(D / 2);
  Array x = Array::random(type, size_t(length) * E), norm = Array::random(type, E);
  Array q_norm = Array::random(type, D), k_norm = Array::random(type, D);
  Array q_bias = Array::random(type, size_t{H} * D), y = Array(type, size_t(length) * E);
  Array keys = Array::random(type, size_t{Hkv} * capacity * D);
  Array values = Array::random(type, size_t{Hkv} * capacity * D);
  Matrix q = packed(H * D, E, type), k = packed(Hkv * D, E, type), v = packed(Hkv * D, E, type);
  Matrix o = packed(E, H * D, type);
};

}  // namespace tinyllm::check
