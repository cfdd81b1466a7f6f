#include "run_attention.h"

#include "attention_plan.h"
#include "scratch.h"

namespace tinyllm {

void run_attention(const Kernels& kernels, const AttentionTask& task) {
  const AttentionPlan plan(task);
  const Aligned<float> partials = aligned<float>(plan.partials);
  ThreadPool& pool = ThreadPool::shared();
  Scratch scratch(kernels.attention_scratch(task));
  pool.run(static_cast<int64_t>(plan.parts.size()), [&](int64_t part, int thread) {
    kernels.attention_part(task, plan.parts[part], partials.get(), scratch[thread]);
  });
  pool.run(static_cast<int64_t>(plan.merges.size()), [&](int64_t merge, int) {
    kernels.attention_merge(task, plan.merges[merge], partials.get());
  });
}

}  // namespace tinyllm
