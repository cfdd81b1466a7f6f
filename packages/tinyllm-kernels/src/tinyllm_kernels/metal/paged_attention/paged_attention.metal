// Results: of requests with several new tokens by tiles, of the others from the parts of their keys.

// A tile of the rows of one request.
template <typename T, int D, int STRIDE, typename Whose, typename Keys, typename Values,
          typename Shape, typename Strides>
void attend_tile_of_request(Whose requests, TileOfRequest at, const device T* q, Keys k, Values v,
                            float scale, device T* out, Shape q_shape, Strides q_strides,
                            int kv_heads, int kv_head, threadgroup T* tile, int thread_index) {
  const int group = q_shape[1] / kv_heads;
  const HeadGroup of = {at.request, kv_head, group, at.row0};
  const int token = requests.query_starts[at.request], queries = requests.queries(at.request);
  const int context = requests.context_lengths[at.request];
  attend_tile<T, D, STRIDE>(queries_from(q, q_strides, token, of), k, v, scale, at.row0,
                            queries * group, context - queries, context, requests.window,
                            results_from(out, q_shape, token, of), tile, thread_index);
}

// A token that is alone in its request, or nobody's: then it has no parts, and gives zeros.
template <typename T, int D, int THREADS, int MIN_PART, int MAX_PARTS, typename Whose,
          typename Shape>
void put_token(Whose requests, const device float* partial, device T* out, Shape q_shape,
               int kv_heads, int most_parts, int token, int kv_head, int thread_index) {
  const int heads = q_shape[1], group = heads / kv_heads;
  const int last = requests.last_until(token), request = max(last, 0);
  const bool is_owned = last >= 0 && token < requests.query_starts[request + 1];
  if (is_owned && requests.queries(request) > 1) return;  // a tile's
  const int parts =
      is_owned ? part_count<MIN_PART, MAX_PARTS>(requests.visible_to_one(request)) : 0;
  for (int i = thread_index; i < group * D; i += THREADS) {
    const int head = kv_head * group + i / D, column = i % D;
    const int64_t row = int64_t(request) * heads + head;
    const device float* parts_of_row = partial + row * most_parts * (D + 2);
    out[(int64_t(token) * heads + head) * D + column] =
        T(merge_parts<D>(parts_of_row, parts, column));
  }
}
