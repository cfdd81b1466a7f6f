// A tile of keys or values in threadgroup memory.

static constant constexpr int TILE = 32;  // query rows, and keys

// Copies keys [block, block + 32) to threadgroup memory. Keys outside [first, end) become zeros:
// their memory may not exist, or may hold NaN, whose product with a weight of 0 is not 0.
template <typename T, int D, int STRIDE, int SIMDGROUPS, typename Keys>
void stage(Keys x, int block, int first, int end, threadgroup T* tile, int thread_index) {
  for (int i = thread_index / 32; i < TILE; i += SIMDGROUPS) {
    const int key = block + i;
    const bool is_there = key >= first && key < end;
    for (int column = thread_index % 32; column < D; column += 32) {
      tile[i * STRIDE + column] = is_there ? T(x.row(key)[column]) : T(0);
    }
  }
}
