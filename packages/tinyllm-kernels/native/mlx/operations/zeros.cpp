// Zeros in pages of 2 MB, for the keys and values of many sequences. A page that is large from its
// first use is never copied, and all threads clear their own.

#include <cstring>

#include "mlx/operations.h"
#include "mlx/operations/primitive.h"
#include "runtime/huge_pages.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class Zeros : public CpuPrimitive {
 public:
  void eval_cpu(const std::vector<mx::array>&, mx::array& out) override {
    const int64_t bytes = out.nbytes();
    char* data = allocate(out);
    prepare_huge_pages(data, bytes);
    dispatch(out, [data, bytes] {
      parallel_for(bytes, 1, [&](int64_t first, int64_t last) {
        std::memset(data + first, 0, last - first);
      });
    });
  }

  const char* name() const override { return "tinyllm::Zeros"; }
};

}  // namespace

mx::array zeros(const std::vector<int>& shape, mx::Dtype dtype) {
  return mx::array(mx::Shape(shape.begin(), shape.end()), dtype, std::make_shared<Zeros>(), {});
}

}  // namespace tinyllm
