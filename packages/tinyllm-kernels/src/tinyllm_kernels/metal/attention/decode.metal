// Decode attention: one query of each head against a split of the keys, with an online softmax
// (Milakov 2018). Each simdgroup reads every fourth key. A lane computes every 32nd column.

// Computes query rows [row0, rows), at most ROWS, against the keys of one split, and passes the
// results to `output.put`. A row keeps its highest score so far (`top`), its sum of weights
// (`total`) and its weighted sum of values (`sum`). Scores are multiplied by log2(e), so that exp2
// gives the weights. Threadgroup memory: `sums` has SIMDGROUPS * D numbers, `tops` and `totals`
// have SIMDGROUPS * ROWS numbers.
template <int D, int ROWS, int SIMDGROUPS, typename Q, typename Keys, typename Values,
          typename Output>
void attend_split(Q q, Keys k, Values v, float scale, int row0, int rows, Range keys, Output output,
                  threadgroup float* sums, threadgroup float* tops, threadgroup float* totals,
                  int thread_index) {
  constexpr int COLUMNS = (D + 31) / 32;  // columns of a lane: lane, lane + 32, ...
  const int simdgroup = thread_index / 32, lane = thread_index % 32;

  // 1. Load the scaled queries into registers.
  float query[ROWS][COLUMNS], sum[ROWS][COLUMNS], top[ROWS], total[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    for (int c = 0; c < COLUMNS; ++c) {
      const int column = lane + 32 * c;
      const bool exists = row0 + r < rows && column < D;
      query[r][c] = exists ? float(q.at(row0 + r, column)) * scale * M_LOG2E_F : 0.0f;
      sum[r][c] = 0;
    }
    top[r] = -INFINITY;
    total[r] = 0;
  }

  // 2. Each simdgroup processes one key at a time, and reads the key and its value once for all
  // rows.
  for (int key = keys.first + simdgroup; key < keys.end; key += SIMDGROUPS) {
    float key_part[COLUMNS], value_part[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) {
      const int column = lane + 32 * c;
      key_part[c] = column < D ? float(k.row(key)[column]) : 0.0f;
      value_part[c] = column < D ? float(v.row(key)[column]) : 0.0f;
    }
    for (int r = 0; r < ROWS; ++r) {
      float score = 0;
      for (int c = 0; c < COLUMNS; ++c) score += query[r][c] * key_part[c];
      score = simd_sum(score);
      const float new_top = max(top[r], score);
      const float factor = exp2(top[r] - shift_of(new_top));
      const float weight = exp2(score - shift_of(new_top));
      for (int c = 0; c < COLUMNS; ++c) sum[r][c] = sum[r][c] * factor + weight * value_part[c];
      total[r] = total[r] * factor + weight;
      top[r] = new_top;
    }
  }

  // 3. Merge the results of the simdgroups, which have processed different keys, row by row.
  if (lane == 0) {
    for (int r = 0; r < ROWS; ++r) {
      tops[simdgroup * ROWS + r] = top[r];
      totals[simdgroup * ROWS + r] = total[r];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int r = 0; r < ROWS; ++r) {
    float highest = -INFINITY;
    for (int s = 0; s < SIMDGROUPS; ++s) highest = max(highest, tops[s * ROWS + r]);
    const float shift = shift_of(highest);
    float merged_total = 0;
    for (int s = 0; s < SIMDGROUPS; ++s) {
      merged_total += totals[s * ROWS + r] * exp2(tops[s * ROWS + r] - shift);
    }
    const float factor = exp2(top[r] - shift);
    for (int c = 0; c < COLUMNS; ++c) {
      const int column = lane + 32 * c;
      if (column < D) sums[simdgroup * D + column] = sum[r][c] * factor;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int column = thread_index; column < D; column += 32 * SIMDGROUPS) {
      float value = 0;
      for (int s = 0; s < SIMDGROUPS; ++s) value += sums[s * D + column];
      if (row0 + r < rows) output.put(row0 + r, column, value, highest, merged_total);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // before the next row overwrites `sums`
  }
}
