// Keys and values in pages, `P Hkv page D` (Kwon et al. 2023).

// The keys or values of one head of one request; P is a pointer.
template <typename P, typename Table>
struct RowsInPages {
  P x;                // of the head, in the first page of all
  Table block_table;  // the pages of the request, in order
  int page;           // keys in each
  int64_t page_stride, token_stride, column_stride;

  Row<P> row(int key) const {
    return {x + block_table[key / page] * page_stride + key % page * token_stride, column_stride};
  }
};

// Where the keys and values of a head are.
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

// The queries of the heads of a group, `T H D`, from a token on.
template <typename T, typename Strides>
Queries<T> queries_from(const device T* q, Strides strides, int token, HeadGroup of) {
  return {q + token * strides[0] + of.kv_head * of.group * strides[1], strides[0], strides[1],
          strides[2], of.group};
}

// The output is contiguous.
template <typename T, typename Shape>
Results<T> results_from(device T* out, Shape q_shape, int token, HeadGroup of) {
  const int dim = q_shape[2];
  const int64_t token_stride = int64_t(q_shape[1]) * dim;
  return {out + token * token_stride + of.kv_head * of.group * dim, token_stride, dim, of.group};
}
