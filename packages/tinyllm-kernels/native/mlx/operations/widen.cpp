// Widening the codes of a weight: codes of 2 and 3 bits to 4, and of 5 and 6 bits to 8. The numbers
// stay the same, with the same scales and biases. Integer products read codes of 4 and 8 bits.

#include <algorithm>

#include "mlx/inputs.h"
#include "mlx/operations.h"
#include "mlx/operations/primitive.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

constexpr int kCodes = 32;  // so many codes of B bits are B words

// Widens 32 codes. The loop has a fixed length, so that words and shifts are constants.
template <int From, int To>
void widen_codes(const uint32_t* from, uint32_t* to) {
  std::fill_n(to, To, 0);
#pragma GCC unroll 32
  for (int i = 0; i < kCodes; ++i) {
    const int word = i * From / 32, shift = i * From % 32;
    uint32_t code = from[word] >> shift;
    if (shift + From > 32) code |= from[word + 1] << (32 - shift);
    to[i * To / 32] |= (code & ((1u << From) - 1)) << (i * To % 32);
  }
}

class Widen : public CpuPrimitive {
 public:
  explicit Widen(int bits) : bits_(bits) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [bits = bits_, input = Input(inputs[0]), y = allocate(out)] {
      Copies copies;
      const auto* from = static_cast<const uint32_t*>(contiguous_data(input, copies));
      auto* to = reinterpret_cast<uint32_t*>(y);
      const auto widen = [&]<int From, int To>() {
        parallel_for(input.size / From, kCodes, [&](int64_t first, int64_t last) {
          for (int64_t n = first; n < last; ++n) widen_codes<From, To>(from + n * From, to + n * To);
        });
      };
      switch (bits) {
        case 2: return widen.template operator()<2, 4>();
        case 3: return widen.template operator()<3, 4>();
        case 5: return widen.template operator()<5, 8>();
        default: return widen.template operator()<6, 8>();
      }
    });
  }

  const char* name() const override { return "tinyllm::Widen"; }

 private:
  int bits_;
};

}  // namespace

mx::array widen(const mx::array& packed, int bits) {
  require(bits == 2 || bits == 3 || bits == 5 || bits == 6, "bits: expected 2, 3, 5 or 6");
  mx::Shape shape = packed.shape();
  require(shape.back() % bits == 0, "packed: expected rows of a multiple of 32 codes");
  shape.back() = shape.back() / bits * integer_bits(bits);
  return mx::array(shape, packed.dtype(), std::make_shared<Widen>(bits), {packed});
}

}  // namespace tinyllm
