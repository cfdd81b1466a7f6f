// Query heads of one sequence that share a key/value head. `batch` is the index of the sequence,
// `group` the number of query heads. A threadgroup computes their rows from `row0` on.
struct HeadGroup {
  int batch, kv_head, group, row0;

  int64_t first_head(int heads) const { return int64_t(batch) * heads + kv_head * group; }
};

// Returns the heads of a threadgroup of a decode kernel. In the grid, x is the split of the keys, y
// a tile of ROWS heads of a group, and z the sequence. Axis 1 of q and k has the heads, in dense
// arrays and in pages.
template <int ROWS, typename Shape>
HeadGroup head_group_of_decode(uint3 position, Shape q_shape, Shape k_shape) {
  const int group = q_shape[1] / k_shape[1], tiles = (group + ROWS - 1) / ROWS, y = position.y;
  return {int(position.z), y / tiles, group, y % tiles * ROWS};
}

// Returns the heads of a threadgroup of a prefill kernel. In the grid, x is the tile, y the
// key/value head, and z the sequence.
template <int ROWS, typename Shape>
HeadGroup head_group_of_tile(uint3 position, Shape q_shape, Shape k_shape) {
  return {int(position.z), int(position.y), q_shape[1] / k_shape[1], int(position.x) * ROWS};
}
