// One query of each head against a part of the keys, by an online softmax (Milakov 2018).

// Rows [row0, rows) of the queries, at most ROWS, against some keys.
template <int D, int ROWS, int SIMDGROUPS, typename Q, typename Keys, typename Values,
          typename Output>
void attend_part(Q q, Keys k, Values v, float scale, int row0, int rows, Range keys, Output output,
                 threadgroup float* sums, threadgroup float* tops, threadgroup float* totals,
                 int thread_index) {
  constexpr int COLUMNS = (D + 31) / 32;  // of a lane: lane, lane + 32, ...
  const int simdgroup = thread_index / 32, lane = thread_index % 32;

  // 1. Queries, scaled, stay in registers.
  float query[ROWS][COLUMNS], sum[ROWS][COLUMNS], top[ROWS], total[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    for (int c = 0; c < COLUMNS; ++c) {
      const int column = lane + 32 * c;
      const bool is_there = row0 + r < rows && column < D;
      query[r][c] = is_there ? float(q.at(row0 + r, column)) * scale * M_LOG2E_F : 0.0f;
      sum[r][c] = 0;
    }
    top[r] = -INFINITY;
    total[r] = 0;
  }

  // 2. A key for each simdgroup: it and its value are read once for all rows.
  for (int key = keys.first + simdgroup; key < keys.end; key += SIMDGROUPS) {
    float offered[COLUMNS], given[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) {
      const int column = lane + 32 * c;
      offered[c] = column < D ? float(k.row(key)[column]) : 0.0f;
      given[c] = column < D ? float(v.row(key)[column]) : 0.0f;
    }
    for (int r = 0; r < ROWS; ++r) {
      float score = 0;
      for (int c = 0; c < COLUMNS; ++c) score += query[r][c] * offered[c];
      score = simd_sum(score);
      const float higher = max(top[r], score);
      const float factor = exp2(top[r] - shift_of(higher));
      const float weight = exp2(score - shift_of(higher));
      for (int c = 0; c < COLUMNS; ++c) sum[r][c] = sum[r][c] * factor + weight * given[c];
      total[r] = total[r] * factor + weight;
      top[r] = higher;
    }
  }

  // 3. The simdgroups have seen different keys: their sums are added up, row after row.
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
    float whole = 0;
    for (int s = 0; s < SIMDGROUPS; ++s) {
      whole += totals[s * ROWS + r] * exp2(tops[s * ROWS + r] - shift);
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
      if (row0 + r < rows) output.put(row0 + r, column, value, highest, whole);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // before `sums` is the next row's
  }
}
