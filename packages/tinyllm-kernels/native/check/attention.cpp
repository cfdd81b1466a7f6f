#include "attention.h"

#include <cmath>
#include <vector>

#include "../run_attention.h"
#include "array.h"

namespace tinyllm::check {
namespace {

struct Shape {
  int64_t heads, kv_heads, length, keys, dim;
};

// Dense keys and values of one request, and what comes of them.
struct Case {
  Case(const Shape& s, Type type)
      : shape(s),
        q(Array::random(type, s.heads * s.length * s.dim)),
        k(Array::random(type, s.kv_heads * s.keys * s.dim)),
        v(Array::random(type, s.kv_heads * s.keys * s.dim)),
        y(type, s.heads * s.length * s.dim) {
    task.q = q.bytes.data(), task.y = y.bytes.data();
    task.k.codes.data = k.bytes.data(), task.v.codes.data = v.bytes.data();
    const int64_t row = s.dim * (type == Type::float32 ? 4 : 2);
    for (KeyValues* kv : {&task.k, &task.v}) {
      kv->type = type;
      kv->codes.strides[1] = s.keys * row, kv->codes.strides[2] = row;
    }
    task.q_strides[1] = task.y_strides[1] = s.length * s.dim;
    task.q_strides[2] = task.y_strides[2] = s.dim;
    task.type = type;
    task.requests = 1, task.heads = s.heads, task.kv_heads = s.kv_heads;
    task.length = s.length, task.keys = s.keys, task.dim = s.dim;
    task.scale = 1 / std::sqrt(static_cast<float>(s.dim));
    task.causal = true;
  }

  // softmax(q k^T scale) v over the keys that each query sees.
  std::vector<double> expected() const {
    std::vector<double> result(y.bytes.size() ? shape.heads * shape.length * shape.dim : 0);
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t head = h / task.group() * shape.keys;
      for (int64_t l = 0; l < shape.length; ++l) {
        const int64_t last = l + shape.keys - shape.length + 1, row = h * shape.length + l;
        const int64_t first = task.window ? std::max<int64_t>(0, last - task.window) : 0;
        std::vector<double> weights(shape.keys);
        double total = 0;
        for (int64_t j = first; j < last; ++j) {
          double score = 0;
          for (int64_t d = 0; d < shape.dim; ++d) {
            score += q.at(row * shape.dim + d) * k.at((head + j) * shape.dim + d);
          }
          total += weights[j] = std::exp(score * task.scale);
        }
        for (int64_t j = first; j < last; ++j) {
          for (int64_t d = 0; d < shape.dim; ++d) {
            result[row * shape.dim + d] += weights[j] / total * v.at((head + j) * shape.dim + d);
          }
        }
      }
    }
    return result;
  }

  Shape shape;
  Array q, k, v, y;
  AttentionTask task;
};

}  // namespace

void check_attention(const Kernels& kernels, Type type) {
  for (int64_t dim : {5, 16, 64, 80}) {
    for (const Shape& shape : {Shape{4, 2, 3, 11, dim}, {6, 1, 1, 600, dim}, {3, 3, 40, 70, dim}}) {
      for (int64_t window : {0, 7}) {
        Case example(shape, type);
        example.task.window = window;
        run_attention(kernels, example.task);
        compare(kernels, "attention", example.y, example.expected());
      }
    }
  }
}

}  // namespace tinyllm::check
