#include "runtime/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "ceil_div.h"

namespace tinyllm {
namespace {

#if !defined(MADV_COLLAPSE)
constexpr int MADV_COLLAPSE = 25;  // Linux 6.1; the headers may be older than the system
#endif

constexpr uintptr_t kPage = 2 << 20;
constexpr size_t kSmallest = 512 << 10;  // bytes that are worth a page of 2 MB

// Gives advice about each page of 2 MB from `first` to `end`. Each has a call of its own, so that a page
// that is only partly mapped is refused alone.
void advise(uintptr_t first, uintptr_t end, int advice) {
  for (uintptr_t page = first; page < end; page += kPage) {
    madvise(reinterpret_cast<void*>(page), kPage, advice);
  }
}

}  // namespace

void use_huge_pages(const void* begin, size_t size) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
  advise(first / kPage * kPage, first + size, MADV_COLLAPSE);
}

void prepare_huge_pages(const void* begin, size_t size) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
  advise(round_up(first, kPage), (first + size) / kPage * kPage, MADV_HUGEPAGE);
}

void use_huge_pages_once(const std::shared_ptr<void>& owner, const void* begin, size_t size) {
  if (size < kSmallest) return;
  static std::mutex mutex;
  // Never destroyed, because MLX may still compute when the process ends.
  static auto& moved = *new std::unordered_map<const void*, std::weak_ptr<void>>;
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
