// Keys and values in pages, `P Hkv page D` (Kwon et al. 2023).

// The keys or values of one head of one request.
template <typename T, typename Table>
struct RowsInPages {
  const device T* x;  // of the head, in the first page of all
  Table block_table;  // the pages of the request, in order
  int page;           // keys in each
  int64_t page_stride, token_stride, column_stride;

  Row<T> row(int key) const {
    return {x + block_table[key / page] * page_stride + key % page * token_stride, column_stride};
  }
};

template <typename T, typename Table, typename Shape, typename Strides>
RowsInPages<T, Table> rows_in_pages(const device T* x, Shape shape, Strides strides, int kv_head,
                                    Table block_table) {
  return {x + kv_head * strides[1], block_table, shape[2], strides[0], strides[2], strides[3]};
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
