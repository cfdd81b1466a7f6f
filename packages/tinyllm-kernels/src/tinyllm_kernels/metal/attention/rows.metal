// Where queries, keys and values lie, and where results go.
#include <metal_stdlib>
using namespace metal;

// The queries of the heads that share a key/value head, as rows: query i of head g of the group is
// row i * group + g. So a key is read once for all of them.
template <typename T>
struct Queries {
  const device T* x;
  int64_t token_stride, head_stride, column_stride;
  int group;

  T at(int row, int column) const {
    return x[row / group * token_stride + row % group * head_stride + column * column_stride];
  }
};

// A key or a value, or a part of its codes; P is a pointer.
template <typename P>
struct Row {
  P x;
  int64_t column_stride;

  auto operator[](int column) const { return x[column * column_stride]; }
};

// The keys or values of one head, one after the other. A cache hands out a view of its buffer, which
// is read in place: a copy would cost as much as attention itself.
template <typename P>
struct Rows {
  P x;
  int64_t token_stride, column_stride;

  Row<P> row(int key) const { return {x + key * token_stride, column_stride}; }
};

// The results, in the order of `Queries`.
template <typename T>
struct Results {
  device T* x;
  int64_t token_stride, head_stride;
  int group;

  void put(int row, int column, T value) const {
    x[row / group * token_stride + row % group * head_stride + column] = value;
  }
};

// What to subtract from scores before they become weights; any number will do where all are -inf.
inline float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

// The weighted mean of values: zero where a query has seen no key.
inline float mean_of(float sum, float total) { return total == 0.0f ? 0.0f : sum / total; }
