// Pages of 2 MB for weights and for the keys and values of a cache.
#pragma once

#include <cstddef>
#include <memory>

namespace tinyllm {

// Asks Linux to move the memory from `begin` to `begin + size` to pages of 2 MB, in place and
// at once. A decoded token reads all weights once; with pages of 4 KB a fifth of that time goes
// into address translation. Memory that cannot be moved stays as it is: this is a hint and never
// fails.
void use_huge_pages(const void* begin, size_t size);

// Asks Linux to use pages of 2 MB for memory that has not been written yet, so that nothing is
// copied later. The ends of the memory, which have a part of such a page, are left as they are: a
// page of which a part is advised could never be moved.
void prepare_huge_pages(const void* begin, size_t size);

// Calls `use_huge_pages` at the first call for an owner, unless the memory is much smaller than a
// page of 2 MB. The arrays of a cache are passed from one forward pass to the next: each pass may
// call this function, and an array is moved at its first pass. The function keeps no owner alive.
void use_huge_pages_once(const std::shared_ptr<void>& owner, const void* begin, size_t size);

}  // namespace tinyllm
