#include "runtime/huge_pages.h"

#include <cstdint>
#include <mutex>
#include <unordered_map>

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

void use_huge_pages_once(const std::shared_ptr<void>& owner, const void* begin, size_t size) {
  constexpr size_t kSmallest = 512 << 10;
  if (size < kSmallest) return;
  static std::mutex mutex;
  static std::unordered_map<const void*, std::weak_ptr<void>> moved;
  static size_t most = 1024;  // entries before those of freed memory are removed
  {
    std::lock_guard lock(mutex);
    std::weak_ptr<void>& known = moved[owner.get()];
    if (!known.expired()) return;
    known = owner;
    if (moved.size() > most) {
      std::erase_if(moved, [](const auto& entry) { return entry.second.expired(); });
      most = 2 * moved.size() + 1024;
    }
  }
  use_huge_pages(begin, size);
}

}  // namespace tinyllm
