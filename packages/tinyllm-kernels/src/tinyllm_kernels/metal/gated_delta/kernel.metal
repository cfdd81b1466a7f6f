// Gated delta rule (Yang 2024), token by token. The state of a value head is a matrix S of `Dv Dk`
// float32 numbers. A simdgroup keeps ROWS rows of S in registers, and no row needs another one.

// Computes the tokens [first, end) of a sequence for some rows of the state of one value head.
//
//   slot    slot with the state before the first token, or negative for a state of zeros
//   saves   for each token the row of `saved` that gets the state after the token, or -1
//   o       results of the head. Results of the next token are `stride` numbers later.
template <typename T, int DK, int ROWS, typename Q, typename K, typename V, typename G,
          typename State, typename Saves>
void gated_delta(Q q, K k, V v, G gates, StateRows at, int first, int end, State state, int slot,
                 Saves saves, device float* saved, device T* o, int64_t stride, int lane) {
  constexpr int COLUMNS = (DK + 31) / 32;  // columns of a lane: lane, lane + 32, ...

  // 1. Load the rows of the state.
  float s[ROWS][COLUMNS];
  for (int r = 0; r < ROWS; ++r) {
    for (int c = 0; c < COLUMNS; ++c) {
      const int column = lane + 32 * c;
      const bool exists = slot >= 0 && at.row0 + r < at.rows && column < DK;
      s[r][c] = exists ? state[slot * at.size + at.offset + r * DK + column] : 0.0f;
    }
  }

  for (int block = first; block < end; block += 32) {
    // 2. Compute the gates of 32 tokens, one for each lane.
    const int own = min(block + lane, end - 1);
    const float decays = gates.decay(own), strengths = gates.strength(own);

    for (int token = block; token < min(block + 32, end); ++token) {
      const float decay = simd_broadcast(decays, ushort(token - block));
      const float strength = simd_broadcast(strengths, ushort(token - block));

      // 3. Normalize the query and the key.
      float query[COLUMNS], key[COLUMNS], query_squares = 0, key_squares = 0;
      for (int c = 0; c < COLUMNS; ++c) {
        const int column = lane + 32 * c;
        query[c] = column < DK ? float(q.row(token)[column]) : 0.0f;
        key[c] = column < DK ? float(k.row(token)[column]) : 0.0f;
        query_squares += query[c] * query[c];
        key_squares += key[c] * key[c];
      }
      const float query_norm = metal::precise::rsqrt(simd_sum(query_squares) + 1e-6f);
      const float key_norm = metal::precise::rsqrt(simd_sum(key_squares) + 1e-6f);
      for (int c = 0; c < COLUMNS; ++c) {
        query[c] *= query_norm * metal::precise::rsqrt(float(DK));
        key[c] *= key_norm;
      }

      // 4. Correct each row so that it predicts the value of the key, and multiply it by the query.
      float result = 0;  // of row `lane`
      for (int r = 0; r < ROWS; ++r) {
        const int row = at.row0 + r;
        float predicted = 0;
        for (int c = 0; c < COLUMNS; ++c) {
          s[r][c] *= decay;
          predicted += s[r][c] * key[c];
        }
        const float value = row < at.rows ? float(v.row(token)[row]) : 0.0f;
        const float correction = (value - simd_sum(predicted)) * strength;
        float sum = 0;
        for (int c = 0; c < COLUMNS; ++c) {
          s[r][c] += correction * key[c];
          sum += s[r][c] * query[c];
        }
        sum = simd_sum(sum);
        result = lane == r ? sum : result;
      }
      if (lane < min(ROWS, at.rows - at.row0)) {
        o[token * stride + at.row0 + lane] = T(result);
      }

      // 5. Save the state after the token.
      if (saves[token] >= 0) {
        device float* target = saved + saves[token] * at.size + at.offset;
        for (int r = 0; r < ROWS; ++r) {
          for (int c = 0; c < COLUMNS; ++c) {
            const int column = lane + 32 * c;
            if (at.row0 + r < at.rows && column < DK) target[r * DK + column] = s[r][c];
          }
        }
      }
    }
  }
}
