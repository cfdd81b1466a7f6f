// A benchmark of attention without MLX or Python. It prints the bandwidth of reading keys and values,
// and the rate of the multiplications and additions that a causal mask leaves. `run.sh` builds it.
//
// Each line is the fastest of many runs, because the machine may be shared.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "layers/attention.h"
#include "runtime/thread_pool.h"
#include "types.h"

#if defined(__AMX_TILE__)
#include "dispatch/tile_permission.h"
#endif

namespace tinyllm::TINYLLM_ISA {
extern const KernelTable kernels;
}

namespace {

using namespace tinyllm;
using TINYLLM_ISA::kernels;

struct Shape {
  int64_t heads, kv_heads, length, keys, dim;
};

// Returns `numbers` normally distributed numbers. The bytes also serve as random codes.
std::vector<char> random_bytes(int64_t numbers, Type type) {
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  std::vector<char> bytes(numbers * (type == Type::float32 ? 4 : 2));
  for (int64_t i = 0; i < numbers; ++i) {
    const float x = normal(generator);
    if (type == Type::float32) reinterpret_cast<float*>(bytes.data())[i] = x;
    if (type == Type::float16) reinterpret_cast<Float16*>(bytes.data())[i] = from_float<Float16>(x);
    if (type == Type::bfloat16) {
      reinterpret_cast<BFloat16*>(bytes.data())[i] = from_float<BFloat16>(x);
    }
  }
  return bytes;
}

// Makes keys or values of the shape. `memory` owns their arrays.
KeyValues make_rows(const Shape& s, Type type, int bits, std::vector<std::vector<char>>& memory) {
  KeyValues kv;
  const auto part = [&](int64_t row_bytes, std::vector<char> bytes) {
    memory.push_back(std::move(bytes));
    return KeyValues::StridedRows{memory.back().data(),
                           {s.kv_heads * s.keys * row_bytes, s.keys * row_bytes, row_bytes}};
  };
  const int64_t rows = s.kv_heads * s.keys;
  kv.type = type;
  if (bits == 0) {
    kv.codes = part(s.dim * (type == Type::float32 ? 4 : 2), random_bytes(rows * s.dim, type));
    return kv;
  }
  kv.mode = Mode::affine, kv.bits = bits, kv.group = 64;
  kv.codes = part(s.dim * bits / 8, random_bytes(rows * s.dim * bits / 16, Type::float16));
  kv.scales = part(s.dim / 64 * 2, random_bytes(rows * s.dim / 64, Type::bfloat16));
  kv.biases = part(s.dim / 64 * 2, random_bytes(rows * s.dim / 64, Type::bfloat16));
  return kv;
}

void time_attention(const Shape& s, Type type, int bits) {
  // Enough layers that their keys and values do not stay in a cache.
  const int64_t number = bits ? bits : type == Type::float32 ? 32 : 16;
  const int64_t bytes = 2 * s.kv_heads * s.keys * s.dim * number / 8;
  const int64_t layers = s.length > 8 ? 1 : std::max<int64_t>(1, (192 << 20) / bytes);
  std::vector<std::vector<char>> memory;
  memory.reserve(6 * layers + 2);
  AttentionTask task;
  task.type = type;
  memory.push_back(random_bytes(s.heads * s.length * s.dim, type));
  task.q = memory.back().data();
  memory.push_back(memory.back());
  task.y = memory.back().data();
  task.requests = 1, task.heads = s.heads, task.kv_heads = s.kv_heads, task.dim = s.dim;
  task.length = s.length, task.keys = s.keys;
  task.q_strides[1] = task.y_strides[1] = s.length * s.dim;
  task.q_strides[2] = task.y_strides[2] = s.dim;
  task.scale = 1 / std::sqrt(static_cast<float>(s.dim));
  task.causal = true;
  std::vector<KeyValues> keys, values;
  for (int64_t layer = 0; layer < layers; ++layer) {
    keys.push_back(make_rows(s, type, bits, memory));
    values.push_back(make_rows(s, type, bits, memory));
  }
  double best = 1e9;
  const auto start = std::chrono::steady_clock::now();
  const auto since = [](auto from) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  };
  for (int64_t layer = 0; since(start) < 1; layer = (layer + 1) % layers) {
    const auto run = std::chrono::steady_clock::now();
    task.k = keys[layer], task.v = values[layer];
    run_attention(kernels, task);
    best = std::min(best, since(run));
  }
  const double scores = static_cast<double>(s.length) * (2 * s.keys - s.length + 1) / 2 * s.heads;
  std::printf("%2ld/%2ld heads of %3ld, L %4ld, S %5ld, %4s, %d bits:", s.heads, s.kv_heads, s.dim,
              s.length, s.keys,
              type == Type::float32 ? "f32" : type == Type::float16 ? "f16" : "bf16", bits);
  std::printf(" %8.1f us, %5.1f GB/s, %6.1f GFLOP/s\n", best * 1e6, bytes / best / 1e9,
              scores * s.dim * 4 / best / 1e9);
}

}  // namespace

int main() {
#if defined(__AMX_TILE__)
  if (!tinyllm::request_tile_registers()) return 1;
#endif
  std::printf("%s, %d threads\n", kernels.name, thread_count());
  for (Type type : {Type::bfloat16, Type::float16, Type::float32}) {
    for (int64_t keys : {128, 2048, 8192}) time_attention({16, 8, 1, keys, 128}, type, 0);
  }
  time_attention({32, 8, 1, 8192, 128}, Type::bfloat16, 0);
  time_attention({14, 2, 1, 8192, 64}, Type::bfloat16, 0);
  for (int bits : {8, 4}) time_attention({16, 8, 1, 8192, 128}, Type::bfloat16, bits);
  for (Type type : {Type::bfloat16, Type::float32}) {
    for (int64_t keys : {512, 2048, 4096}) time_attention({16, 8, keys, keys, 128}, type, 0);
  }
  time_attention({14, 2, 512, 512, 64}, Type::bfloat16, 0);
  time_attention({16, 8, 512, 512, 128}, Type::bfloat16, 8);
}
