// Interleaving the rows of a weight, as matmul/interleave.h describes it. It works in place where
// possible, so that loading a model does not hold two copies of its weights.

#include <cstring>

#include "mlx/donation.h"
#include "mlx/operations.h"
#include "runtime/aligned.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class Interleave : public CpuPrimitive {
 public:
  explicit Interleave(int rows) : rows_(rows) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [rows = rows_, input = DonatedInput(inputs[0], out), size = int64_t(out.size())] {
      char* data = input.content();
      const int64_t width = input.shape().back();
      const auto transpose = [&]<typename T>(T*) {
        transpose_groups(reinterpret_cast<T*>(data), size, rows, width);
      };
      switch (input.itemsize()) {
        case 1: return transpose(static_cast<uint8_t*>(nullptr));
        case 2: return transpose(static_cast<uint16_t*>(nullptr));
        default: return transpose(static_cast<uint32_t*>(nullptr));
      }
    });
  }

  const char* name() const override { return "tinyllm::Interleave"; }

 private:
  // Transposes each group of `rows` rows of `width` numbers in place.
  template <typename T>
  static void transpose_groups(T* numbers, int64_t size, int64_t rows, int64_t width) {
    const int64_t group = rows * width;
    parallel_for(size / group, group, [&](int64_t first, int64_t last) {
      const Aligned<T> copy = aligned<T>(group);
      for (T* to = numbers + first * group; to < numbers + last * group; to += group) {
        std::memcpy(copy.get(), to, group * sizeof(T));
        for (int64_t k = 0; k < width; ++k) {
          for (int64_t r = 0; r < rows; ++r) to[k * rows + r] = copy[r * width + k];
        }
      }
    });
  }

  int rows_;
};

}  // namespace

mx::array interleave(const mx::array& array, int rows) {
  return mx::array(array.shape(), array.dtype(), std::make_shared<Interleave>(rows), {array});
}

}  // namespace tinyllm
