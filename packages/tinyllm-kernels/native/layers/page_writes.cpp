#include "layers/page_writes.h"

#include <cstring>

#include "runtime/parallel.h"

namespace tinyllm {

void WritablePages::write(const Kernels& kernels, const void* rows, Type type, int64_t tokens,
                          int64_t heads, int64_t dim, const int32_t* slots, int64_t num_pages,
                          int64_t page_size) const {
  const int64_t row_bytes = dim * size_of(type);
  const auto write_token = [&](int64_t n) {
    if (slots[n] < 0 || slots[n] >= num_pages * page_size) return;
    const int64_t page = slots[n] / page_size, token = slots[n] % page_size;
    for (int64_t head = 0; head < heads; ++head) {
      const char* row = static_cast<const char*>(rows) + (n * heads + head) * row_bytes;
      char* to = codes + kv.codes.offset(page, head, token);
      if (kv.mode == Mode::dense) {
        std::memcpy(to, row, row_bytes);
      } else {
        kernels.quantize_row({row, to, scales + kv.scales.offset(page, head, token),
                              biases + kv.biases.offset(page, head, token), dim, kv.bits, kv.group,
                              type});
      }
    }
  };
  parallel_for(tokens, heads * dim, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) write_token(n);
  });
}

}  // namespace tinyllm
