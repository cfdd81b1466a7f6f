// Refusal of operations in a child process that was forked after use.
#pragma once

namespace tinyllm {

// Records that this process evaluates an operation, so that a fork after it is noticed.
void record_use();

// Throws std::runtime_error in a child process whose parent had evaluated an operation before `fork`.
// The threads of MLX's streams do not exist in the child, so MLX would wait for them forever, even to
// report an error during the evaluation. So each operation calls this function when it is made.
void refuse_after_fork();

}  // namespace tinyllm
