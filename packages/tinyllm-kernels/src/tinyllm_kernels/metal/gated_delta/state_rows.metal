// Returns a head's rows in an array `T H D`, one row for each token.
template <typename P, typename Strides>
Rows<P> rows_of_head(P x, Strides strides, int head) {
  return {x + head * strides[1], strides[0], strides[2]};
}

// Rows of S that a simdgroup computes: [row0, rows), at most ROWS. `offset` is the index of the
// first row in a slot of the state, and `size` the number of numbers in a slot.
struct StateRows {
  int row0, rows;
  int64_t offset, size;
};
