#include "runtime/huge_pages.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tinyllm {

void use_huge_pages([[maybe_unused]] const void* begin, [[maybe_unused]] size_t size) {
#if defined(__linux__)
#if !defined(MADV_COLLAPSE)
  constexpr int MADV_COLLAPSE = 25;  // Linux 6.1; the headers may be older than the system
#endif
  constexpr uintptr_t kPage = 2 << 20;
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / kPage * kPage;
  const uintptr_t end = reinterpret_cast<uintptr_t>(begin) + size;
  // One call for each page, so that a page that is only partly mapped is refused alone.
  for (uintptr_t page = first; page < end; page += kPage) {
    madvise(reinterpret_cast<void*>(page), kPage, MADV_COLLAPSE);
  }
#endif
}

}  // namespace tinyllm
