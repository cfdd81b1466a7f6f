// Parts of the keys in decode attention: their sizes, their results, and the merge of the results.

// Range of keys [first, end).
struct Range {
  int first, end;
};

// Returns the number of keys of a part. It depends only on the visible keys of the sequence, so
// that a sequence has the same bits in any batch.
template <int MIN_PART, int MAX_PARTS>
int part_size(Range keys) {
  return max(MIN_PART, (keys.end - keys.first + MAX_PARTS - 1) / MAX_PARTS);
}

// Returns the keys of one part. Parts after the last one are empty.
template <int MIN_PART, int MAX_PARTS>
Range part_of(Range keys, int part) {
  const int size = part_size<MIN_PART, MAX_PARTS>(keys), first = keys.first + part * size;
  return {min(first, keys.end), min(first + size, keys.end)};
}

template <int MIN_PART, int MAX_PARTS>
int part_count(Range keys) {
  const int size = part_size<MIN_PART, MAX_PARTS>(keys);
  return (keys.end - keys.first + size - 1) / size;
}

// Results of one part of the keys. A row has D sums of weighted values, the highest score, and the
// sum of weights. Scores are multiplied by log2(e), and weights are relative to the highest score.
// If WHOLE, the part has all keys, and the row is the result of attention.
template <typename O, int D, bool WHOLE>
struct PartResults {
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

// Returns the results of one part for the heads from `head` on, in a contiguous array
// `heads parts width`.
template <int D, bool WHOLE, typename O>
PartResults<O, D, WHOLE> part_results_of(device O* out, int64_t head, int part, int parts) {
  const int width = WHOLE ? D : D + 2;
  return {out + (head * parts + part) * width, int64_t(parts) * width};
}

// Returns one column of a row's result, merged from all parts of the keys.
template <int D>
float merge_parts(const device float* partial, int parts, int column) {
  float highest = -INFINITY;
  for (int part = 0; part < parts; ++part) highest = max(highest, partial[part * (D + 2) + D]);
  float sum = 0, total = 0;
  for (int part = 0; part < parts; ++part) {
    const device float* at = partial + part * (D + 2);
    const float factor = exp2(at[D] - shift_of(highest));
    sum += at[column] * factor;
    total += at[D + 1] * factor;
  }
  return mean_of(sum, total);
}
