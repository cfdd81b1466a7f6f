// Loans: arrays of caches that a stack keeps between its passes.
//
// As inputs and outputs of every pass, the arrays of all layers would be new objects of MLX for every
// token. The first pass of a loan takes the arrays as inputs. Each later pass has the result of the
// pass before as an input instead, so that passes are computed in order.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "mlx/donation.h"
#include "mlx/handles.h"
#include "mlx/operations.h"

namespace tinyllm {

// The memory of caches, for the tasks of passes.
using CacheMemory = std::shared_ptr<const std::vector<DonatedInput>>;

// Donates `count` inputs, from index 1 on, to the outputs of the same indices.
CacheMemory donate(const std::vector<mlx::core::array>& inputs,
                   std::vector<mlx::core::array>& outputs, size_t count,
                   bool without_tokens = false);

// The arrays of a loan, shared with the primitives of its passes.
class LentArrays {
 public:
  // Makes arrays without memory, with the shapes and dtypes of `arrays`.
  explicit LentArrays(const std::vector<mlx::core::array>& arrays);

  // Returns the memory for a pass, whose task must keep this object. The first call takes the memory
  // from the inputs, from index 1 on.
  CacheMemory memory(const std::vector<mlx::core::array>& inputs, bool without_tokens = false);

  // The arrays. They have shapes and dtypes before the first pass.
  const std::vector<mlx::core::array>& arrays() const { return arrays_; }

  // The size of the axis `capacity` that all arrays `B 2 Hkv capacity D` of dense caches have at
  // least. Without such arrays it is the largest number.
  int capacity() const { return capacity_; }

  // Gives the arrays up, after all passes.
  std::vector<mlx::core::array> release() { return std::move(arrays_); }

 private:
  std::vector<mlx::core::array> arrays_;
  int capacity_ = std::numeric_limits<int>::max();
  CacheMemory memory_;
};

class Loan {
 public:
  // Borrows the arrays of the caches of `layers`, which are attention layers alone.
  Loan(const LayerGroup& layers, std::vector<mlx::core::array> arrays);

  // True for the layers that borrowed the arrays.
  bool belongs_to(const LayerGroup& layers) const { return layers_.lock() == layers; }

  // True until the first pass is built.
  bool is_new() const { return !last_; }

  // The arrays for the primitive of a pass.
  const std::shared_ptr<LentArrays>& lent() const { return lent_; }

  // Returns the result of the next pass, an array with shape and dtype of x. The inputs of
  // `primitive` are x, the borrowed arrays or the result of the pass before, and `others`. Throws
  // std::invalid_argument if x has another width or dtype than in the pass before.
  mlx::core::array next(const mlx::core::array& x, const std::vector<mlx::core::array>& others,
                        std::shared_ptr<mlx::core::Primitive> primitive);

  // Computes all passes, ends the loan and returns the arrays. This object holds them, too, so that
  // a second call returns the same. With `drops_last`, the latest pass is left out unless it is
  // already scheduled. A holder of its result can still compute it: the pass then copies the arrays,
  // if others hold them.
  std::vector<mlx::core::array> end(bool drops_last);

 private:
  std::weak_ptr<const std::vector<LayerHandle>> layers_;  // a cache keeps no weights alive
  std::vector<mlx::core::array> unused_;  // the arrays before the first pass and after the end
  std::shared_ptr<LentArrays> lent_;
  std::optional<mlx::core::array> last_;  // the result of the latest pass
  bool is_first_ = true;                  // true if that is the first pass
};

}  // namespace tinyllm
