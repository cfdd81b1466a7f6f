// Splits of the keys in decode attention (flash-decoding, Dao et al. 2023): their sizes, their
// results, and the merge of the results.

// Range of keys [first, end).
struct Range {
  int first, end;
};

// Returns the number of keys of a split. It depends only on the visible keys of the sequence, so
// that a sequence has the same bits in any batch.
template <int MIN_SPLIT, int MAX_SPLITS>
int split_size(Range keys) {
  return max(MIN_SPLIT, (keys.end - keys.first + MAX_SPLITS - 1) / MAX_SPLITS);
}

// Returns the keys of one split. Splits after the last one are empty.
template <int MIN_SPLIT, int MAX_SPLITS>
Range keys_of_split(Range keys, int split) {
  const int size = split_size<MIN_SPLIT, MAX_SPLITS>(keys), first = keys.first + split * size;
  return {min(first, keys.end), min(first + size, keys.end)};
}

template <int MIN_SPLIT, int MAX_SPLITS>
int split_count(Range keys) {
  const int size = split_size<MIN_SPLIT, MAX_SPLITS>(keys);
  return (keys.end - keys.first + size - 1) / size;
}

// Results of one split of the keys. A row has D sums of weighted values, the highest score, and the
// sum of weights. Scores are multiplied by log2(e), and weights are relative to the highest score.
// If WHOLE, the split has all keys, and the row is the result of attention.
template <typename O, int D, bool WHOLE>
struct SplitResults {
  device O* x;
  int64_t row_stride;

  void put(int row, int column, float sum, float top, float total) const {
    device O* at = x + row * row_stride;
    at[column] = O(WHOLE ? mean_of(sum, total) : sum);
    if (!WHOLE && column == 0) {
      at[D] = O(top);
      at[D + 1] = O(total);
    }
  }
};

// Returns the results of one split for the heads from `head` on, in a contiguous array
// `heads splits width`.
template <int D, bool WHOLE, typename O>
SplitResults<O, D, WHOLE> split_results_of(device O* out, int64_t head, int split, int splits) {
  const int width = WHOLE ? D : D + 2;
  return {out + (head * splits + split) * width, int64_t(splits) * width};
}

// Returns one column of a row's result, merged from all splits of the keys.
template <int D>
float merge_splits(const device float* partial, int splits, int column) {
  float highest = -INFINITY;
  for (int split = 0; split < splits; ++split) highest = max(highest, partial[split * (D + 2) + D]);
  float sum = 0, total = 0;
  for (int split = 0; split < splits; ++split) {
    const device float* at = partial + split * (D + 2);
    const float factor = exp2(at[D] - shift_of(highest));
    sum += at[column] * factor;
    total += at[D + 1] * factor;
  }
  return mean_of(sum, total);
}
