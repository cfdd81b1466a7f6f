// Prediction of the next matrix product, so that idle threads can prefetch its weights.
//
// A model computes its products in the same order for every token. A product that followed another
// one twice in a row is predicted to follow it again. Where the order varies, as with experts,
// there is no prediction. Each thread that runs models keeps an order of its own.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/prefetch.h"

namespace tinyllm {

// The memory that each thread of the pool reads first in a product.
using PrefetchLists = std::vector<PrefetchList>;

class ProductOrder {
 public:
  static ProductOrder& of_this_thread();

  // Records that a product begins. The address of its weights identifies it. `parts` >= 1 is the
  // number of parts that the threads of the pool share. `find()` computes the prefetch lists of the
  // product. It is called when the product is new or `parts` changed. Returns the lists of the
  // predicted next product, or an empty vector. The reference is valid until the next call.
  template <typename Find>
  const PrefetchLists& begin(const void* weights, int64_t parts, Find find) {
    if (products_.size() > kMaxProducts) clear();
    Product& product = products_[weights];
    if (product.parts != parts) {
      product.lists = find();  // may throw
      product.parts = parts;
    }
    record_successor(weights);
    const auto next = products_.find(product.next);
    const bool is_predicted = product.is_confirmed && next != products_.end();
    return is_predicted ? next->second.lists : empty_;
  }

 private:
  struct Product {
    int64_t parts = 0;
    PrefetchLists lists;
    const void* next = nullptr;  // the weights of the product that followed the last time
    bool is_confirmed = false;   // true if `next` followed twice in a row
  };

  // Enough for several models. Beyond it the table is cleared, because freed weights leave entries.
  static constexpr size_t kMaxProducts = 4096;

  void clear();
  void record_successor(const void* weights);

  std::unordered_map<const void*, Product> products_;
  const void* latest_ = nullptr;
  const PrefetchLists empty_;
};

}  // namespace tinyllm
