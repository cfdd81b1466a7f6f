// Which product follows which.
//
// A model computes its products in the same order for every token. So what followed a product the
// last two times is what will follow it now; where that changes, as with experts, nothing is said.
// Each thread that computes models has an order of its own.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/prefetch.h"

namespace tinyllm {

// What each thread of the pool reads first of a product.
using FirstReads = std::vector<Upcoming>;

class ProductOrder {
 public:
  static ProductOrder& of_this_thread();

  // Takes down that a product of so many parts begins, known by its weights, of which `find()` says
  // what threads read first. Returns that of the product after it, or nothing, until the next call.
  template <typename Find>
  const FirstReads& begin(const void* weights, int64_t parts, Find find) {
    if (products_.size() > kMost) forget();
    Product& product = products_[weights];
    if (product.parts != parts) product.parts = parts, product.reads = find();
    follow(weights);
    const auto next = products_.find(product.next);
    return product.is_sure && next != products_.end() ? next->second.reads : nothing_;
  }

 private:
  struct Product {
    int64_t parts = 0;
    FirstReads reads;
    const void* next = nullptr;
    bool is_sure = false;  // whether that was so twice
  };

  static constexpr size_t kMost = 4096;  // products: some models, before all is forgotten

  void forget();
  void follow(const void* weights);

  std::unordered_map<const void*, Product> products_;
  const void* latest_ = nullptr;
  const FirstReads nothing_;
};

}  // namespace tinyllm
