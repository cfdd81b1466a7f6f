#include "layers/page_writes.h"

#include <algorithm>
#include <cstring>

#include "runtime/parallel.h"

namespace tinyllm {
namespace {

constexpr int64_t kLine = 64;  // bytes
constexpr int64_t kAhead = 8;  // tokens whose lines are prefetched together

}  // namespace

void WritablePages::write(const KernelTable& kernels, const void* rows, Type type, int64_t tokens,
                          int64_t heads, int64_t dim, const int32_t* slots, int64_t num_pages,
                          int64_t page_size) const {
  const bool is_dense = kv.mode == Mode::dense;
  const int64_t row_bytes = dim * size_of(type);
  const int64_t code_bytes = is_dense ? row_bytes : dim * kv.bits / 8;
  // Calls `work(head, page, token of the page)` for each head of token n, if the token has a slot.
  const auto for_heads = [&](int64_t n, auto work) {
    if (slots[n] < 0 || slots[n] >= num_pages * page_size) return;
    for (int64_t head = 0; head < heads; ++head) {
      work(head, slots[n] / page_size, slots[n] % page_size);
    }
  };
  const auto prefetch_token = [&](int64_t n) {
    for_heads(n, [&](int64_t head, int64_t page, int64_t token) {
      const char* to = codes + kv.codes.offset(page, head, token);
      for (int64_t byte = 0; byte < code_bytes; byte += kLine) __builtin_prefetch(to + byte, 1);
    });
  };
  const auto write_token = [&](int64_t n) {
    for_heads(n, [&](int64_t head, int64_t page, int64_t token) {
      const char* row = static_cast<const char*>(rows) + (n * heads + head) * row_bytes;
      char* to = codes + kv.codes.offset(page, head, token);
      if (is_dense) {
        std::memcpy(to, row, row_bytes);
      } else {
        kernels.quantize_row({row, to, scales + kv.scales.offset(page, head, token),
                              biases + kv.biases.offset(page, head, token), dim, kv.bits, kv.group,
                              type});
      }
    });
  };
  // The pages are in no cache. So the lines of several tokens are read at the same time.
  constexpr int64_t kCost = 4;
  parallel_for(tokens, kCost * heads * dim, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; n += kAhead) {
      const int64_t end = std::min(n + kAhead, last);
      for (int64_t ahead = n; ahead < end; ++ahead) prefetch_token(ahead);
      for (int64_t now = n; now < end; ++now) write_token(now);
    }
  });
}

}  // namespace tinyllm
