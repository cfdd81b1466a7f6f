// Access to keys and values in pages, arrays of shape `P Hkv page D` (Kwon et al. 2023).

// Keys or values of one head of one sequence. P is a pointer.
template <typename P, typename Table>
struct RowsInPages {
  P x;                // first key of the head in page 0
  Table block_table;  // pages of the sequence, in order
  int page;           // keys in a page
  int64_t page_stride, token_stride, column_stride;

  Row<P> row(int key) const {
    return {x + block_table[key / page] * page_stride + key % page * token_stride, column_stride};
  }
};

// Key/value head of a sequence. `rows` returns the keys or values of the head in an array of pages.
template <typename Table>
struct HeadInPages {
  Table block_table;
  int page, kv_head;

  template <typename P, typename Strides>
  RowsInPages<P, Table> rows(P x, Strides strides) const {
    return {x + kv_head * strides[1], block_table, page, strides[0], strides[2], strides[3]};
  }
};

template <typename Table>
HeadInPages<Table> head_in_pages(Table block_table, int page, int kv_head) {
  return {block_table, page, kv_head};
}

// Returns the queries of a group of heads, from a token on, in an array `T H D`.
template <typename T, typename Strides>
Queries<T> queries_from(const device T* q, Strides strides, int token, HeadGroup heads) {
  return {q + token * strides[0] + heads.kv_head * heads.group * strides[1], strides[0], strides[1],
          strides[2], heads.group};
}

// Returns the results of a group of heads, from a token on, in a contiguous array of the shape of
// q.
template <typename T, typename Shape>
Results<T> results_from(device T* out, Shape q_shape, int token, HeadGroup heads) {
  const int dim = q_shape[2];
  const int64_t token_stride = int64_t(q_shape[1]) * dim;
  return {out + token * token_stride + heads.kv_head * heads.group * dim, token_stride, dim,
          heads.group};
}
