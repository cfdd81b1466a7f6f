// Sequences of a forward pass, from the arrays of a `PageTable`.

template <typename Tables, typename Starts, typename Lengths>
struct Sequences {
  Tables block_tables;
  Starts cu_seqlens_q;
  Lengths seq_lens;
  int count, blocks;  // the shape of block_tables
  int window;         // 0: no window

  int queries(int sequence) const { return cu_seqlens_q[sequence + 1] - cu_seqlens_q[sequence]; }
  Tables pages(int sequence) const { return block_tables + sequence * blocks; }

  // Returns the visible keys of a decode step: a sequence with exactly one query. For any other
  // sequence the range is empty.
  Range visible_to_one(int sequence) const {
    const int end = queries(sequence) == 1 ? seq_lens[sequence] : 0;
    return {window == 0 ? 0 : max(0, end - window), end};
  }
};

template <typename Tables, typename Starts, typename Lengths, typename Shape>
Sequences<Tables, Starts, Lengths> sequences_of(Tables block_tables, Starts cu_seqlens_q,
                                                Lengths seq_lens, Shape shape, int window) {
  return {block_tables, cu_seqlens_q, seq_lens, shape[0], shape[1], window};
}

// Tile of the query rows of a sequence, from `row0` on.
struct TileOfSequence {
  int sequence, row0;
};

// Returns tile `index` among the tiles of all sequences with at least `min_queries` queries. The 32
// lanes of a simdgroup count the tiles of 32 sequences at a time. The host launches one threadgroup
// for each tile, so the search always succeeds.
template <typename Table>
TileOfSequence tile_of_sequence(Table sequences, int index, int group, int min_queries, int lane) {
  int before = 0;
  for (int base = 0; base < sequences.count; base += 32) {
    const int queries = base + lane < sequences.count ? sequences.queries(base + lane) : 0;
    const int tiles = queries >= min_queries ? (queries * group + TILE - 1) / TILE : 0;
    const int until = before + simd_prefix_inclusive_sum(tiles);
    const int found = simd_min(until > index ? lane : 32);
    if (found < 32) {
      return {base + found, (index - simd_broadcast(until - tiles, found)) * TILE};
    }
    before = simd_broadcast(until, 31);
  }
  return {0, 0};
}
