#include "runtime/product_order.h"

namespace tinyllm {

ProductOrder& ProductOrder::of_this_thread() {
  static thread_local ProductOrder order;
  return order;
}

void ProductOrder::clear() {
  products_.clear();
  latest_ = nullptr;
}

// Records that the product of these weights follows the latest one.
void ProductOrder::record_successor(const void* weights) {
  if (const auto before = products_.find(latest_); before != products_.end()) {
    Product& product = before->second;
    product.is_confirmed = product.next == weights;
    product.next = weights;
  }
  latest_ = weights;
}

}  // namespace tinyllm
