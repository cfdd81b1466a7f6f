// Prefill attention: 32 query rows against blocks of 32 keys (FlashAttention, Dao 2022), with
// simdgroup matrices of 8 x 8.
//
// A lane holds two neighboring elements of a matrix. Metal does not document their position, but
// MLX's own attention relies on the same layout. Scores and weights can therefore stay in
// registers: a row is in the four lanes whose indices differ in bits 0 and 3. Loops over matrices are
// unrolled, because an array with a variable index is in memory.

// Position of the first of a lane's two elements in a matrix.
struct Element {
  int row, column;
};

inline Element element_of(int lane) {
  return {lane / 16 * 4 + lane / 2 % 4, lane / 8 % 2 * 4 + lane % 2 * 2};
}

// Computes query rows [row0, rows), at most 32, and passes the results to `output.put`.
//
// Query i attends to keys [0, before + i], and at most to the `keys` keys that exist. If `window`
// is not 0, it attends only to the last `window` of these keys. `tile` has TILE * STRIDE numbers. It
// holds STRIDE - 8 columns of the keys at a time, a divisor of D and a multiple of 8.
template <typename T, int D, int STRIDE, typename Q, typename Keys, typename Values,
          typename Output>
void attend_tile(Q q, Keys k, Values v, float scale, int row0, int rows, int before, int keys,
                 int window, Output output, threadgroup T* tile, int thread_index) {
  constexpr int SIMDGROUPS = 4;  // each has eight rows
  constexpr int COLUMNS = STRIDE - 8;
  const Element element = element_of(thread_index % 32);
  const int row = row0 + thread_index / 32 * 8 + element.row;

  // 1. Load the queries into registers, in the dtype of the keys.
  simdgroup_matrix<T, 8, 8> query[D / 8];
  simdgroup_float8x8 sum[D / 8];
#pragma unroll
  for (int d = 0; d < D / 8; ++d) {
    for (int e = 0; e < 2; ++e) {
      const int column = 8 * d + element.column + e;
      query[d].thread_elements()[e] = row < rows ? q.at(row, column) : T(0);
    }
    sum[d] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  // 2. The visible keys of this row are [own_first, own_end), of the whole tile [first, end).
  const int own_end = min(keys, before + row / q.group + 1);
  const int own_first = window == 0 ? 0 : max(0, own_end - window);
  const int last = min(row0 + TILE, rows) - 1;
  const int end = min(keys, before + last / q.group + 1);
  const int first = window == 0 ? 0 : max(0, min(keys, before + row0 / q.group + 1) - window);
  float top = -INFINITY, total = 0;

  for (int block = first / TILE * TILE; block < end; block += TILE) {
    // 3. Compute the scores of the block.
    simdgroup_float8x8 weight[TILE / 8];
#pragma unroll
    for (int j = 0; j < TILE / 8; ++j) {
      weight[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
#pragma unroll
    for (int column0 = 0; column0 < D; column0 += COLUMNS) {
      threadgroup_barrier(mem_flags::mem_threadgroup);  // all threads have read the tile
      stage<T, COLUMNS, STRIDE, SIMDGROUPS>(k, block, first, end, column0, tile, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (int j = 0; j < TILE / 8; ++j) {
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; ++d) {
          simdgroup_matrix<T, 8, 8> key;
          simdgroup_load(key, tile + 8 * j * STRIDE + 8 * d, STRIDE, ulong2(0), true);
          simdgroup_multiply_accumulate(weight[j], query[column0 / 8 + d], key, weight[j]);
        }
      }
    }

    // 4. Replace the scores by weights relative to the highest score so far, and rescale the
    // earlier sums, which are relative to the previous highest score.
    float new_top = top;
#pragma unroll
    for (int j = 0; j < TILE / 8; ++j) {
      for (int e = 0; e < 2; ++e) {
        const int key = block + 8 * j + element.column + e;
        const float score = weight[j].thread_elements()[e] * scale * M_LOG2E_F;
        const float masked = key >= own_first && key < own_end ? score : -INFINITY;
        weight[j].thread_elements()[e] = masked;
        new_top = max(new_top, masked);
      }
    }
    new_top = max(new_top, simd_shuffle_xor(new_top, 1));
    new_top = max(new_top, simd_shuffle_xor(new_top, 8));
    const float shift = shift_of(new_top), factor = exp2(top - shift);
    total *= factor;
#pragma unroll
    for (int j = 0; j < TILE / 8; ++j) {
      for (int e = 0; e < 2; ++e) {
        const float w = exp2(weight[j].thread_elements()[e] - shift);
        weight[j].thread_elements()[e] = w;
        total += w;
      }
    }
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      for (int e = 0; e < 2; ++e) sum[d].thread_elements()[e] *= factor;
    }
    top = new_top;

    // 5. Add the weighted values. The values overwrite the keys in threadgroup memory.
#pragma unroll
    for (int column0 = 0; column0 < D; column0 += COLUMNS) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage<T, COLUMNS, STRIDE, SIMDGROUPS>(v, block, first, end, column0, tile, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (int j = 0; j < TILE / 8; ++j) {
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; ++d) {
          const int out = column0 / 8 + d;
          simdgroup_matrix<T, 8, 8> value;
          simdgroup_load(value, tile + 8 * j * STRIDE + 8 * d, STRIDE);
          simdgroup_multiply_accumulate(sum[out], weight[j], value, sum[out]);
        }
      }
    }
  }

  // 6. Add the sums of weights of the four lanes of a row, and write the means.
  total += simd_shuffle_xor(total, 1);
  total += simd_shuffle_xor(total, 8);
  if (row < rows) {
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      for (int e = 0; e < 2; ++e) {
        const float mean = mean_of(sum[d].thread_elements()[e], total);
        output.put(row, 8 * d + element.column + e, T(mean));
      }
    }
  }
}
