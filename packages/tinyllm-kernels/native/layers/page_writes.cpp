#include "layers/page_writes.h"

#include <cstring>

#include "runtime/parallel.h"

namespace tinyllm {

void PageRows::write(const Kernels& kernels, const void* rows, Type type, int64_t tokens,
                     int64_t heads, int64_t dim, const int32_t* slots, int64_t pages,
                     int64_t page) const {
  const int64_t bytes = dim * size_of(type);
  const auto write_token = [&](int64_t n) {
    if (slots[n] < 0 || slots[n] >= pages * page) return;
    const int64_t where = slots[n] / page, token = slots[n] % page;
    for (int64_t head = 0; head < heads; ++head) {
      const char* row = static_cast<const char*>(rows) + (n * heads + head) * bytes;
      char* to = codes + kv.codes.offset(where, head, token);
      if (kv.mode == Mode::dense) {
        std::memcpy(to, row, bytes);
      } else {
        kernels.quantize_row({row, to, scales + kv.scales.offset(where, head, token),
                              biases + kv.biases.offset(where, head, token), dim, kv.bits,
                              kv.group, type});
      }
    }
  };
  in_chunks(tokens, heads * dim, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) write_token(n);
  });
}

}  // namespace tinyllm
