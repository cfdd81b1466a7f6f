#include "mlx/donation.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/huge_pages.h"
#include "runtime/parallel.h"

namespace tinyllm {

namespace mx = mlx::core;

namespace {

std::atomic<int64_t> copied{0};

// Copies memory on all threads. The pages of a cache may have gigabytes.
void copy(const void* from, char* to, int64_t bytes) {
  parallel_for(bytes, 1, [&](int64_t first, int64_t last) {
    std::memcpy(to + first, static_cast<const char*>(from) + first, last - first);
  });
}

}  // namespace

int64_t copied_bytes() { return copied.load(std::memory_order_relaxed); }

DonatedInput::DonatedInput(const mx::array& from, mx::array& to, bool without_tokens)
    : from_(from) {
  if (from.is_donatable() && from.flags().row_contiguous) {
    to.copy_shared_buffer(from);
    data_ = to.data<char>();
    use_huge_pages_once(to.data_shared_ptr(), data_, to.nbytes());
    return;
  }
  data_ = allocate(to);
  prepare_huge_pages(data_, to.nbytes());
  is_copied_ = !(without_tokens && from.data_size() == 1);
  if (is_copied_) copied.fetch_add(static_cast<int64_t>(to.nbytes()), std::memory_order_relaxed);
}

char* DonatedInput::content() const {
  if (is_copied_) {
    std::unique_ptr<char[]> compact;
    const int64_t bytes = from_.size * static_cast<int64_t>(from_.itemsize);
    copy(from_.compact(compact), data_, bytes);
  }
  return data_;
}

}  // namespace tinyllm
