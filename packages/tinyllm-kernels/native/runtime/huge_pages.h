// Large pages under weights.
#pragma once

#include <cstddef>

namespace tinyllm {

// Asks the system to keep the memory from `begin` on in pages of 2 MB, now, where it lies. Weights
// are read from end to end for each token, and the machine spends a fifth of that on finding pages
// of 4 KB. What cannot be moved together stays as it is.
void use_huge_pages(const void* begin, size_t size);

}  // namespace tinyllm
