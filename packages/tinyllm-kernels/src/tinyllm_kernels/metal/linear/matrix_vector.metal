// Matrix-vector product y = x w^T + addend, for `tokens` rows of x and the rows of w from
// `first_row` on. At most TOKENS tokens and ROWS rows are computed.
//
// w has `outputs` rows of `inputs` codes with BITS bits, and a scale and a bias for each
// `group_size` codes of a row. The simdgroups of the threadgroup split the columns of w. A lane
// reads units of 32 codes, which are BITS words. `partial` has room for simdgroups * TOKENS * ROWS
// sums.
template <typename T, int BITS, int TOKENS, int ROWS, typename X, typename W, typename S,
          typename B, typename A>
void matrix_vector(X x, W packed, S scales, B biases, A addend, device T* y, uint tokens,
                   uint outputs, uint inputs, uint group_size, uint first_row, uint lane,
                   uint simdgroup, uint simdgroups, threadgroup float* partial) {
  const uint units = inputs / 32, units_per_group = group_size / 32, groups = inputs / group_size;
  float sum[TOKENS][ROWS] = {};
  for (uint unit = simdgroup * 32 + lane; unit < units; unit += simdgroups * 32) {
    // 1. Read the words of the unit in each row. Rows past the end repeat the last row, and tokens
    // past the end the last token. Their sums are not written.
    uint words[ROWS][BITS];
    float scale[ROWS], bias[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const ulong row = metal::min(first_row + r, outputs - 1);
      const ulong first_word = (row * units + unit) * BITS,
                  group = row * groups + unit / units_per_group;
#pragma unroll
      for (int i = 0; i < BITS; ++i) {
        words[r][i] = packed[first_word + i];
      }
      scale[r] = float(scales[group]);
      bias[r] = float(biases[group]);
    }

    // 2. Unpack eight weights of each row at a time, and multiply them with each token.
#pragma unroll
    for (uint offset = 0; offset < 32; offset += 8) {
      float w[ROWS][8];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (uint i = 0; i < 8; ++i) {
          w[r][i] = scale[r] * float(code_at<BITS>(words[r], offset + i)) + bias[r];
        }
      }
#pragma unroll
      for (uint token = 0; token < TOKENS; ++token) {
        const ulong first_x = ulong(metal::min(token, tokens - 1)) * inputs + unit * 32 + offset;
#pragma unroll
        for (uint i = 0; i < 8; ++i) {
          const float value = float(x[first_x + i]);
#pragma unroll
          for (int r = 0; r < ROWS; ++r) {
            sum[token][r] += value * w[r][i];
          }
        }
      }
    }
  }

  // 3. Add the sums of the lanes, then of the simdgroups. One thread adds and writes each result.
#pragma unroll
  for (int i = 0; i < TOKENS * ROWS; ++i) {
    const float simdgroup_sum = simd_sum(sum[i / ROWS][i % ROWS]);
    if (lane == 0) {
      partial[simdgroup * TOKENS * ROWS + i] = simdgroup_sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint i = simdgroup * 32 + lane, token = i / ROWS, row = first_row + i % ROWS;
  if (i < TOKENS * ROWS && token < tokens && row < outputs) {
    float total = addend.at(token, row);
    for (uint s = 0; s < simdgroups; ++s) {
      total += partial[s * TOKENS * ROWS + i];
    }
    y[ulong(token) * outputs + row] = T(total);
  }
}
