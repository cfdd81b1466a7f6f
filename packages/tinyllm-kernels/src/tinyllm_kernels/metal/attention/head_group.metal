// The heads of one request that share a key/value head; their queries are rows, from `row0` on.
struct HeadGroup {
  int batch, kv_head, group, row0;

  int64_t first_head(int heads) const { return int64_t(batch) * heads + kv_head * group; }
};

// Threadgroups x, y, z of a kernel that decodes: parts of the keys, ROWS heads of a group, requests.
// Axis 1 of q and k is that of the heads, in dense arrays and in pages.
template <int ROWS, typename Shape>
HeadGroup head_group_to_decode(uint3 position, Shape q_shape, Shape k_shape) {
  const int group = q_shape[1] / k_shape[1], tiles = (group + ROWS - 1) / ROWS, y = position.y;
  return {int(position.z), y / tiles, group, y % tiles * ROWS};
}

// Threadgroups x, y, z of a kernel with tiles: tiles, key/value heads, requests.
template <int ROWS, typename Shape>
HeadGroup head_group_of_tile(uint3 position, Shape q_shape, Shape k_shape) {
  return {int(position.z), int(position.y), q_shape[1] / k_shape[1], int(position.x) * ROWS};
}
