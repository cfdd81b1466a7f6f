// Tile of keys or values in threadgroup memory.

static constant constexpr int TILE = 32;  // query rows, and keys

// Copies COLUMNS columns, from `column0` on, of keys [block, block + 32) to threadgroup memory. Keys
// outside of [first, end) become zeros. Their memory may not exist, or may hold NaN, and NaN times a
// weight of 0 is not 0.
template <typename T, int COLUMNS, int STRIDE, int SIMDGROUPS, typename Keys>
void stage(Keys x, int block, int first, int end, int column0, threadgroup T* tile,
           int thread_index) {
  for (int i = thread_index / 32; i < TILE; i += SIMDGROUPS) {
    const int key = block + i;
    const bool exists = key >= first && key < end;
    for (int column = thread_index % 32; column < COLUMNS; column += 32) {
      tile[i * STRIDE + column] = exists ? T(x.row(key)[column0 + column]) : T(0);
    }
  }
}
