// y = x w^T + addend for up to TOKENS rows of x and ROWS rows of w a threadgroup.
//
// The simdgroups split the columns. A lane reads units of 32 numbers: BITS words with one scale.
template <typename T, int BITS, int TOKENS, int ROWS, typename X, typename W, typename S,
          typename B, typename A>
void matrix_vector(X x, W packed, S scales, B biases, A addend, device T* y, uint tokens,
                   uint outputs, uint inputs, uint group_size, uint first_row, uint lane,
                   uint simdgroup, uint simdgroups, threadgroup float* partial) {
  const uint units = inputs / 32, units_of_group = group_size / 32, groups = inputs / group_size;
  float sum[TOKENS][ROWS] = {};
  for (uint unit = simdgroup * 32 + lane; unit < units; unit += simdgroups * 32) {
    // 1. The words of the unit in each row. Rows and tokens past the end read the last one again.
    uint words[ROWS][BITS];
    float scale[ROWS], bias[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const ulong row = metal::min(first_row + r, outputs - 1);
      const ulong begin = (row * units + unit) * BITS, group = row * groups + unit / units_of_group;
#pragma unroll
      for (int i = 0; i < BITS; ++i) {
        words[r][i] = packed[begin + i];
      }
      scale[r] = float(scales[group]);
      bias[r] = float(biases[group]);
    }

    // 2. Eight weights at a time are unpacked once and multiplied with the numbers of each token.
#pragma unroll
    for (uint part = 0; part < 32; part += 8) {
      float w[ROWS][8];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (uint i = 0; i < 8; ++i) {
          w[r][i] = scale[r] * float(code_at<BITS>(words[r], part + i)) + bias[r];
        }
      }
#pragma unroll
      for (uint token = 0; token < TOKENS; ++token) {
        const ulong begin = ulong(metal::min(token, tokens - 1)) * inputs + unit * 32 + part;
#pragma unroll
        for (uint i = 0; i < 8; ++i) {
          const float value = float(x[begin + i]);
#pragma unroll
          for (int r = 0; r < ROWS; ++r) {
            sum[token][r] += value * w[r][i];
          }
        }
      }
    }
  }

  // 3. Sums over the lanes, then over the simdgroups.
#pragma unroll
  for (int i = 0; i < TOKENS * ROWS; ++i) {
    const float all = simd_sum(sum[i / ROWS][i % ROWS]);
    if (lane == 0) {
      partial[simdgroup * TOKENS * ROWS + i] = all;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint i = simdgroup * 32 + lane, token = i / ROWS, row = first_row + i % ROWS;
  if (i < TOKENS * ROWS && token < tokens && row < outputs) {
    float all = addend.at(token, row);
    for (uint s = 0; s < simdgroups; ++s) {
      all += partial[s * TOKENS * ROWS + i];
    }
    y[ulong(token) * outputs + row] = T(all);
  }
}
