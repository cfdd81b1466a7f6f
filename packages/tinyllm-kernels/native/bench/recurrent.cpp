// A benchmark of the mixer of gated DeltaNet without MLX or Python: microseconds of a layer for one
// token, which reads and writes the whole state, and for a prompt. `run.sh` builds it.
//
// Each line is the fastest of many runs, because the machine may be shared.
#include <chrono>
#include <cstdio>
#include <vector>

#include "check/data/recurrent.h"
#include "runtime/thread_pool.h"

#if defined(__AMX_TILE__)
#include "dispatch/tile_permission.h"
#endif

namespace tinyllm::TINYLLM_ISA {
extern const KernelTable kernels;
}

namespace {

using namespace tinyllm;
using TINYLLM_ISA::kernels;

// Times layers of 128 numbers a head in turn. `is_in_place` saves states to the slots they come from.
void time_mixer(int key_heads, int value_heads, int tokens, Type type, bool is_in_place) {
  // Rows of a prompt are padded as in a layer. Some tokens more leave room for the padding.
  const int padding = tokens > 8 ? 32 : 0, allocated = tokens + tokens / 32 + 1;
  const int layers = tokens > 8 ? 2 : 18;
  std::vector<check::Mixer> mixers;
  for (int layer = 0; layer < layers; ++layer) {
    check::Mixer& m = mixers.emplace_back(type, key_heads, value_heads, 128, 128, 4, allocated, 2);
    m.tokens = tokens, m.starts = {0, tokens}, m.saves.resize(tokens);
    m.loads = {0}, m.saves.back() = is_in_place ? 0 : 1;
  }
  const auto compute = [&](check::Mixer& m) {
    MixerTask task = m.task();
    for (int64_t* stride : {&task.conv.x_stride, &task.gate_stride, &task.y_stride}) {
      *stride += padding;
    }
    run_mixer(kernels, task);
  };
  double best = 1e9;
  const auto since = [](auto from) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  };
  const auto start = std::chrono::steady_clock::now();
  for (int layer = 0; since(start) < 2; layer = (layer + 1) % layers) {
    const auto run = std::chrono::steady_clock::now();
    compute(mixers[layer]);
    best = std::min(best, since(run));
    if (!is_in_place) std::swap(mixers[layer].loads[0], mixers[layer].saves.back());
  }
  std::printf("%2d/%2d heads, T %4d, %4s, %s: %8.1f us, %6.2f us a token\n", value_heads, key_heads,
              tokens, type == Type::float32 ? "f32" : "bf16",
              is_in_place ? "in place     " : "two slots    ", best * 1e6, best * 1e6 / tokens);
}

}  // namespace

int main() {
#if defined(__AMX_TILE__)
  if (!tinyllm::request_tile_registers()) return 1;
#endif
  std::printf("%s, %d threads\n", kernels.name, thread_count());
  for (const int value_heads : {16, 32}) {
    for (const bool is_in_place : {true, false}) {
      time_mixer(16, value_heads, 1, Type::bfloat16, is_in_place);
    }
    for (const int tokens : {4, 32, 512}) time_mixer(16, value_heads, tokens, Type::bfloat16, false);
  }
}
