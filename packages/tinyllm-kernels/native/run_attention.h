// A whole attention, on all threads: for whoever has a task and no wish to cut it up.
#pragma once

#include "kernels.h"

namespace tinyllm {

void run_attention(const Kernels& kernels, const AttentionTask& task);

}  // namespace tinyllm
