#include "check/checks.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "check/data/array.h"
#include "check/data/matrix.h"
#include "layers/attention.h"

namespace tinyllm::check {
namespace {

struct Shape {
  int64_t heads, kv_heads, length, keys, dim;
};

// Features of a quantization group.
int64_t group_of(int64_t dim) { return dim == 128 ? 64 : 32; }

// Rows of keys or of values: packed in codes of `bits` bits, or dense if `bits` is 0.
struct Rows {
  Rows(int64_t rows, int64_t dim, Type type, int bits)
      : bits(bits),
        dense(bits ? Array(type, 0) : Array::random(type, rows * dim)),
        packed(bits ? rows : 0, dim, bits ? bits : 8, group_of(dim), type) {
    kv.type = type;
    if (bits) {
      kv.mode = Mode::affine, kv.bits = bits, kv.group = group_of(dim);
      kv.codes.data = reinterpret_cast<const char*>(packed.codes.data());
      kv.scales.data = packed.scales.bytes.data();
      kv.biases.data = packed.biases.bytes.data();
    } else {
      kv.codes.data = dense.bytes.data();
    }
  }

  // Sets the strides of pages, each with `tokens` tokens of `heads` heads.
  void lay_out(int64_t heads, int64_t tokens, int64_t dim) {
    const int64_t number = kv.type == Type::float32 ? 4 : 2;
    const int64_t group = dim / group_of(dim) * number;
    stride(kv.codes, bits ? dim * bits / 8 : dim * number, heads, tokens);
    stride(kv.scales, group, heads, tokens);
    stride(kv.biases, group, heads, tokens);
  }

  static void stride(KeyValues::StridedRows& part, int64_t row, int64_t heads, int64_t tokens) {
    part.strides[2] = row, part.strides[1] = tokens * row;
    part.strides[0] = heads * tokens * row;
  }

  // All rows as numbers.
  std::vector<double> numbers() const { return bits ? packed.numbers() : dense.numbers(); }

  int bits;
  Array dense;
  Matrix packed;
  KeyValues kv;
};

// A task with one request. With pages there is a second request, which has no queries.
struct Case {
  Case(const Shape& s, Type type, int bits, int64_t page)
      : shape(s),
        page(page ? page : s.keys),
        pages((s.keys + this->page - 1) / this->page),
        table(2 * pages, -1),
        q(Array::random(type, s.heads * s.length * s.dim)),
        y(type, s.heads * s.length * s.dim),
        k(pages * s.kv_heads * this->page, s.dim, type, bits),
        v(pages * s.kv_heads * this->page, s.dim, type, bits) {
    for (Rows* rows : {&k, &v}) rows->lay_out(s.kv_heads, this->page, s.dim);
    std::iota(table.begin(), table.begin() + pages, 0);
    std::shuffle(table.begin(), table.begin() + pages, generator);
    task.q = q.bytes.data(), task.y = y.bytes.data();
    task.k = k.kv, task.v = v.kv;
    task.q_strides[1] = task.y_strides[1] = s.length * s.dim;
    task.q_strides[2] = task.y_strides[2] = s.dim;
    task.type = type;
    task.requests = 1, task.heads = s.heads, task.kv_heads = s.kv_heads;
    task.length = s.length, task.keys = s.keys, task.dim = s.dim;
    // Codes are large. Without the factor scores would be thousands, and too inexact to compare.
    task.scale = 1 / (std::sqrt(static_cast<float>(s.dim)) * static_cast<float>(1 << bits));
    task.causal = true;
    if (page == 0) return;
    starts = {0, static_cast<int32_t>(s.length), static_cast<int32_t>(s.length)};
    lengths = {static_cast<int32_t>(s.keys), 1};
    task.requests = 2;
    task.cu_seqlens_q = starts.data(), task.seq_lens = lengths.data();
    task.block_tables = table.data();
    task.block_table_width = task.pages = pages, task.page_size = page, task.tokens = s.length;
  }

  int64_t row(int64_t head, int64_t key) const {
    const int64_t page_index = task.block_tables ? table[key / page] : key / page;
    return (page_index * shape.kv_heads + head) * page + key % page;
  }

  // softmax(q k^T scale) v over the keys that each query attends to.
  std::vector<double> expected() const {
    const std::vector<double> queries = q.numbers(), keys = k.numbers(), values = v.numbers();
    std::vector<double> result(queries.size());
    for (int64_t h = 0; h < shape.heads; ++h) {
      for (int64_t l = 0; l < shape.length; ++l) {
        const int64_t last = l + shape.keys - shape.length + 1;
        const int64_t first = task.window ? std::max<int64_t>(0, last - task.window) : 0;
        const int64_t at = (h * shape.length + l) * shape.dim;
        double total = 0;
        for (int64_t j = first; j < last; ++j) {
          const int64_t from = row(h / task.heads_per_kv(), j) * shape.dim;
          const double score = dot(&queries[at], &keys[from], shape.dim);
          const double weight = std::exp(score * task.scale);
          total += weight;
          add_scaled(weight, &values[from], shape.dim, &result[at]);
        }
        for (int64_t d = 0; d < shape.dim && total > 0; ++d) result[at + d] /= total;
      }
    }
    return result;
  }

  Shape shape;
  int64_t page, pages;
  std::vector<int32_t> table, starts, lengths;
  Array q, y;
  Rows k, v;
  AttentionTask task;
};

}  // namespace

void check_attention(const KernelTable& kernels, Type type) {
  for (int64_t dim : {5, 16, 64, 80, 128}) {
    for (const Shape& shape : {Shape{4, 2, 3, 11, dim},
                               {6, 1, 1, 600, dim},
                               {3, 3, 40, 70, dim},
                               {2, 1, 20, 300, dim},
                               {4, 1, 40, 560, dim}}) {
      for (int64_t window : {0, 7}) {
        for (int64_t page : {0, 6}) {
          for (int bits : {0, 3, 4, 8}) {
            if (bits && dim % 32) continue;
            Case example(shape, type, bits, page);
            example.task.window = window;
            run_attention(kernels, example.task);
            compare(kernels, "attention", example.y, example.expected());
          }
        }
      }
    }
  }
}

}  // namespace tinyllm::check
