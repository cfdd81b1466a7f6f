// Pages of 2 MB for weights.
#pragma once

#include <cstddef>

namespace tinyllm {

// Asks the kernel to move the memory from `begin` to `begin + size` to pages of 2 MB, in place and
// at once. A decoded token reads all weights once; with pages of 4 KB a fifth of that time goes
// into address translation. Memory that cannot be moved stays as it is: this is a hint and never
// fails.
void use_huge_pages(const void* begin, size_t size);

}  // namespace tinyllm
