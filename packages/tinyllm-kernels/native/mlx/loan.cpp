#include "mlx/loan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "mlx/operations/primitive.h"

namespace tinyllm {

namespace mx = mlx::core;

CacheMemory donate(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs,
                   size_t count, bool without_tokens) {
  auto memory = std::make_shared<std::vector<DonatedInput>>();
  for (size_t i = 1; i <= count; ++i) {
    memory->emplace_back(inputs[i], outputs[i], without_tokens);
  }
  return memory;
}

LentArrays::LentArrays(const std::vector<mx::array>& arrays) {
  for (const mx::array& array : arrays) {
    arrays_.emplace_back(array.shape(), array.dtype(), nullptr, std::vector<mx::array>{});
    if (array.ndim() == 5) capacity_ = std::min(capacity_, array.shape(3));
  }
}

CacheMemory LentArrays::memory(const std::vector<mx::array>& inputs, bool without_tokens) {
  if (memory_) return memory_;
  auto taken = std::make_shared<std::vector<DonatedInput>>();
  auto later = std::make_shared<std::vector<DonatedInput>>();
  for (size_t i = 0; i < arrays_.size(); ++i) {
    taken->emplace_back(inputs[i + 1], arrays_[i], without_tokens);
    arrays_[i].set_status(mx::array::Status::available);
    later->emplace_back(arrays_[i]);
  }
  memory_ = std::move(later);
  return taken;
}

Loan::Loan(const LayerGroup& layers, std::vector<mx::array> arrays)
    : layers_(layers),
      unused_(std::move(arrays)),
      lent_(std::make_shared<LentArrays>(unused_)) {
  const auto has_attention = [](const LayerHandle& layer) { return bool(layer.attention); };
  require(!layers->empty() && std::all_of(layers->begin(), layers->end(), has_attention),
          "layers: expected attention layers alone");
}

mx::array Loan::next(const mx::array& x, const std::vector<mx::array>& others,
                     std::shared_ptr<mx::Primitive> primitive) {
  std::vector<mx::array> inputs = {x};
  if (last_) {
    require(x.ndim() == 3 && x.shape(2) == last_->shape(2) && x.dtype() == last_->dtype(),
            "x: expected the width and the dtype of the pass before");
    inputs.push_back(*last_);
    is_first_ = false;
  } else {
    inputs.insert(inputs.end(), std::make_move_iterator(unused_.begin()),
                  std::make_move_iterator(unused_.end()));
    unused_.clear();
  }
  inputs.insert(inputs.end(), others.begin(), others.end());
  last_ = mx::array(x.shape(), x.dtype(), std::move(primitive), std::move(inputs));
  return *last_;
}

std::vector<mx::array> Loan::end(bool drops_last) {
  if (!last_) return unused_;
  if (!drops_last || last_->status() != mx::array::Status::unscheduled) {
    last_->eval();  // if this throws, the loan goes on
    last_.reset();
    return unused_ = lent_->release();
  }
  std::vector<mx::array>& inputs = last_->inputs();
  if (!is_first_) inputs[1].eval();
  mx::array last = *std::exchange(last_, std::nullopt);
  if (is_first_) {
    unused_.assign(inputs.begin() + 1, inputs.begin() + 1 + lent_->arrays().size());
    return unused_;
  }
  unused_ = lent_->release();
  inputs.erase(inputs.begin() + 1);
  inputs.insert(inputs.begin() + 1, unused_.begin(), unused_.end());
  *lent_ = LentArrays(unused_);
  return unused_;
}

}  // namespace tinyllm
