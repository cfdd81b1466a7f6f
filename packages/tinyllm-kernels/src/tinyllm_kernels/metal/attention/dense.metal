// What a threadgroup has of dense arrays, `B H L D` and `B Hkv S D`.

template <typename T, typename Strides>
Queries<T> queries_of(const device T* q, Strides strides, HeadGroup of) {
  return {q + of.batch * strides[0] + of.kv_head * of.group * strides[1], strides[2], strides[1],
          strides[3], of.group};
}

// Where the keys and values of a head are.
struct HeadInBatch {
  int batch, kv_head;

  template <typename P, typename Strides>
  Rows<P> rows(P x, Strides strides) const {
    return {x + batch * strides[0] + kv_head * strides[1], strides[2], strides[3]};
  }
};

// The output is contiguous.
template <typename T, typename Shape>
Results<T> results_of(device T* out, Shape q_shape, HeadGroup of) {
  const int64_t head_stride = int64_t(q_shape[2]) * q_shape[3];
  return {out + of.first_head(q_shape[1]) * head_stride, q_shape[3], head_stride, of.group};
}
