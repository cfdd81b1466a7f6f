// Access to queries, keys, values and results through their strides.
#include <metal_stdlib>
using namespace metal;

// Queries of the heads that share a key/value head, as rows. Query i of head g in the group is row
// i * group + g, so that a key is read once for all heads of the group.
template <typename T>
struct Queries {
  const device T* x;
  int64_t token_stride, head_stride, column_stride;
  int group;

  T at(int row, int column) const {
    return x[row / group * token_stride + row % group * head_stride + column * column_stride];
  }
};

// One key or value, or a row of its codes, scales or biases. P is a pointer.
template <typename P>
struct Row {
  P x;
  int64_t column_stride;

  auto operator[](int column) const { return x[column * column_stride]; }
};

// Keys or values of one head. They are a view of the cache's buffer, and are read in place, because
// a copy would cost as much as attention itself.
template <typename P>
struct Rows {
  P x;
  int64_t token_stride, column_stride;

  Row<P> row(int key) const { return {x + key * token_stride, column_stride}; }
};

// Results, with the same rows as `Queries`.
template <typename T>
struct Results {
  device T* x;
  int64_t token_stride, head_stride;
  int group;

  void put(int row, int column, T value) const {
    x[row / group * token_stride + row % group * head_stride + column] = value;
  }
};

// Returns the number to subtract from scores before exp2. If all scores are -inf, 0 avoids NaN.
inline float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

// Returns the weighted mean of values, or zero for a query without visible keys.
inline float mean_of(float sum, float total) { return total == 0.0f ? 0.0f : sum / total; }
