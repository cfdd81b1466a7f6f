// Access to dense arrays: queries `B H L D`, keys and values `B Hkv S D`.

template <typename T, typename Strides>
Queries<T> queries_of(const device T* q, Strides strides, HeadGroup heads) {
  return {q + heads.batch * strides[0] + heads.kv_head * heads.group * strides[1], strides[2],
          strides[1], strides[3], heads.group};
}

// Key/value head of a sequence. `rows` returns the keys or values of the head in an array.
struct HeadInBatch {
  int batch, kv_head;

  template <typename P, typename Strides>
  Rows<P> rows(P x, Strides strides) const {
    return {x + batch * strides[0] + kv_head * strides[1], strides[2], strides[3]};
  }
};

// Returns the results of a group of heads, in a contiguous array of the shape of q.
template <typename T, typename Shape>
Results<T> results_of(device T* out, Shape q_shape, HeadGroup heads) {
  const int64_t head_stride = int64_t(q_shape[2]) * q_shape[3];
  return {out + heads.first_head(q_shape[1]) * head_stride, q_shape[3], head_stride, heads.group};
}
