// The kernels of each instruction set, and the choice among them.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace tinyllm {

namespace portable {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512vnni {
extern const Kernels kernels;
}
namespace avx512bf16 {
extern const Kernels kernels;
}
namespace amx {
extern const Kernels kernels;
}
namespace neon {
extern const Kernels kernels;
}
namespace neonbf16 {
extern const Kernels kernels;
}

// Those that this machine can run, the fastest first; "portable" is always the last.
const std::vector<const Kernels*>& tiers();

// The first of them, or the one that TINYLLM_CPU_ISA names. Throws std::invalid_argument if that is
// none of them.
const Kernels& chosen_tier();

}  // namespace tinyllm
