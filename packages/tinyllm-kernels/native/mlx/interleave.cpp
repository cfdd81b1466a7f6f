// Lays rows side by side, as matmul/interleave.h has them, in the memory where they are, if nobody
// else reads it: what a model is made of should be in memory once.

#include <cstring>

#include "runtime/aligned.h"
#include "runtime/parallel.h"
#include "mlx/operations.h"
#include "mlx/donation.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class Interleave : public CpuPrimitive {
 public:
  explicit Interleave(int side) : side_(side) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [side = side_, store = TakenOver(inputs[0], out), size = int64_t(out.size())] {
      char* numbers = store.numbers();
      const int64_t width = store.shape().back();
      if (store.itemsize() == 4) {
        turn(reinterpret_cast<uint32_t*>(numbers), size, side, width);
      } else {
        turn(reinterpret_cast<uint16_t*>(numbers), size, side, width);
      }
    });
  }

  const char* name() const override { return "tinyllm::Interleave"; }

 private:
  // Blocks of `side` rows become as many columns.
  template <typename T>
  static void turn(T* numbers, int64_t size, int64_t side, int64_t width) {
    const int64_t block = side * width;
    in_chunks(size / block, block, [&](int64_t first, int64_t last) {
      const Aligned<T> rows = aligned<T>(block);
      for (T* to = numbers + first * block; to < numbers + last * block; to += block) {
        std::memcpy(rows.get(), to, block * sizeof(T));
        for (int64_t k = 0; k < width; ++k) {
          for (int64_t r = 0; r < side; ++r) to[k * side + r] = rows[r * width + k];
        }
      }
    });
  }

  int side_;
};

}  // namespace

mx::array interleave(const mx::array& part, int side) {
  return mx::array(part.shape(), part.dtype(), std::make_shared<Interleave>(side), {part});
}

}  // namespace tinyllm
