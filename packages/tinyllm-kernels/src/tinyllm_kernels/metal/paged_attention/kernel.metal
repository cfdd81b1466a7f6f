// Attention over pages: the tiles of prefill, and the last launch of decode, which merges the
// results of the splits of the keys. The body of each kernel is in `__init__.py`.

// Computes the query rows of one tile, for one key/value head. `at` names the sequence and the
// first row of the tile. A row is a query head of a token: all heads of the group for the first
// token, then for the second. q and out are `T H D`, out is contiguous. `tile` has TILE * STRIDE
// numbers.
template <typename T, int D, int STRIDE, typename Table, typename Keys, typename Values,
          typename Shape, typename Strides>
void attend_tile_of_sequence(Table sequences, TileOfSequence at, const device T* q, Keys k,
                             Values v, float scale, device T* out, Shape q_shape,
                             Strides q_strides, int kv_heads, int kv_head, threadgroup T* tile,
                             int thread_index) {
  const int group = q_shape[1] / kv_heads;
  const HeadGroup heads = {at.sequence, kv_head, group, at.row0};
  const int token = sequences.cu_seqlens_q[at.sequence], keys = sequences.seq_lens[at.sequence];
  const int queries = sequences.queries(at.sequence);
  attend_tile<T, D, STRIDE>(queries_from(q, q_strides, token, heads), k, v, scale, at.row0,
                            queries * group, keys - queries, keys, sequences.window,
                            results_from(out, q_shape, token, heads), tile, thread_index);
}

// Merges the results of the splits of the keys, for a sequence with exactly one query. Sequences
// with more queries are computed as tiles. A threadgroup computes the query heads that share a
// key/value head. `partial` is `sequences heads capacity D+2`, with the rows of `SplitResults`, and
// `capacity` is the number of splits of the longest sequence. `out` is `T H D`, contiguous.
template <typename T, int D, int THREADS, int MIN_SPLIT, int MAX_SPLITS, typename Table>
void merge_sequence(Table sequences, const device float* partial, device T* out, int heads,
                    int kv_heads, int capacity, int sequence, int kv_head, int thread_index) {
  if (sequences.queries(sequence) != 1) return;
  const int group = heads / kv_heads, token = sequences.cu_seqlens_q[sequence];
  const int splits = split_count<MIN_SPLIT, MAX_SPLITS>(sequences.visible_to_one(sequence));
  for (int i = thread_index; i < group * D; i += THREADS) {
    const int head = kv_head * group + i / D, column = i % D;
    const int64_t row = int64_t(sequence) * heads + head;
    const device float* splits_of_row = partial + row * capacity * (D + 2);
    out[(int64_t(token) * heads + head) * D + column] =
        T(merge_splits<D>(splits_of_row, splits, column));
  }
}
