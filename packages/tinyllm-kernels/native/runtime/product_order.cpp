#include "runtime/product_order.h"

namespace tinyllm {

ProductOrder& ProductOrder::of_this_thread() {
  static thread_local ProductOrder order;
  return order;
}

void ProductOrder::forget() {
  products_.clear();
  latest_ = nullptr;
}

// Takes down that these weights come after the latest ones.
void ProductOrder::follow(const void* weights) {
  if (const auto before = products_.find(latest_); before != products_.end()) {
    Product& product = before->second;
    product.is_sure = product.next == weights;
    product.next = weights;
  }
  latest_ = weights;
}

}  // namespace tinyllm
