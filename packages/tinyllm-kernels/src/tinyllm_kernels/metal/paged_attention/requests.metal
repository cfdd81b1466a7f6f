// Which tokens and keys are whose. The host has not read these arrays: each threadgroup does.

template <typename Table, typename Starts, typename Lengths>
struct Requests {
  Table block_table;
  Starts query_starts;
  Lengths context_lengths;
  int count, blocks;  // the shape of block_table
  int window;         // 0 is none

  int queries(int request) const { return query_starts[request + 1] - query_starts[request]; }
  Table pages(int request) const { return block_table + request * blocks; }

  // The keys that a request's only new token sees. None where there are several new tokens, which
  // are the business of tiles, or no new token.
  Range visible_to_one(int request) const {
    const int end = queries(request) == 1 ? context_lengths[request] : 0;
    return {window == 0 ? 0 : max(0, end - window), end};
  }

  // The last request that begins at a token or before it; -1 if none does.
  int last_until(int token) const {
    int below = -1, above = count;
    while (above - below > 1) {
      const int middle = (below + above) / 2;
      const bool begins_later = query_starts[middle] > token;
      above = begins_later ? middle : above;
      below = begins_later ? below : middle;
    }
    return below;
  }
};

template <typename Table, typename Starts, typename Lengths, typename Shape>
Requests<Table, Starts, Lengths> requests_of(Table block_table, Starts query_starts,
                                             Lengths context_lengths, Shape shape, int window) {
  return {block_table, query_starts, context_lengths, shape[0], shape[1], window};
}

// A tile of the rows of a request with several new tokens; of no request if `request` is -1.
struct TileOfRequest {
  int request, row0;
};

// Tile `index` of all: 32 lanes count those of 32 requests at a time.
template <typename Whose>
TileOfRequest tile_of_request(Whose requests, int index, int group, int lane) {
  int before = 0;
  for (int base = 0; base < requests.count; base += 32) {
    const int queries = base + lane < requests.count ? requests.queries(base + lane) : 0;
    const int tiles = queries > 1 ? (queries * group + TILE - 1) / TILE : 0;
    const int until = before + simd_prefix_inclusive_sum(tiles);
    const int found = simd_min(until > index ? lane : 32);
    if (found < 32) {
      return {base + found, (index - simd_broadcast(until - tiles, found)) * TILE};
    }
    before = simd_broadcast(until, 31);
  }
  return {-1, 0};
}
