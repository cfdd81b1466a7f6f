// Prefill or decode: the phase of a forward pass.
#pragma once

#include <cstdint>

namespace tinyllm {

// The two phases are computed by different kernels, which round differently. Within a phase the
// bits of a row do not depend on the number of rows.
enum class Phase : uint8_t {
  prefill,  // rows are consecutive tokens of one sequence
  decode,   // each row is the newest token of a sequence
};

}  // namespace tinyllm
