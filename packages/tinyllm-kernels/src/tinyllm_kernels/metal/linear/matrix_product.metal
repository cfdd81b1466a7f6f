// Matrix product y = x w^T + addend. Four simdgroups compute a tile of y: 32 tokens from
// `first_token` on by 32 rows of w from `first_row` on.
//
// The product sums the units of 32 columns in [begin, end). It adds the units of each split first,
// and then the splits, so that the result has the same bits if every split has its own threadgroup.
// Sums are float32. OUT is T, or float for the sum of one split.
#include <metal_simdgroup_matrix>

template <typename T>
struct Tiles {
  enum : uint { SIDE = 32, STRIDE = SIDE + 16 / sizeof(T) };  // padding: rows use different banks
};

template <typename T, typename OUT, int BITS, typename X, typename W, typename S, typename B,
          typename A>
void matrix_product(X x, W packed, S scales, B biases, A addend, device OUT* y, uint tokens,
                    uint outputs, uint inputs, uint group_size, uint begin, uint end,
                    uint split_units, uint first_token, uint first_row, uint thread_index,
                    uint simdgroup, threadgroup T* x_tile, threadgroup T* w_tile,
                    threadgroup float* y_tile) {
  constexpr uint STRIDE = Tiles<T>::STRIDE;
  const uint units = inputs / 32, units_per_group = group_size / 32, groups = inputs / group_size;
  // Of both input tiles, a thread fills row r, columns c to c + 7.
  const uint r = thread_index / 4, c = thread_index % 4 * 8;
  const uint token = first_token + r, row = first_row + r;
  // A simdgroup computes a quarter of the tile of y: two by two matrices from (top, left) on.
  const uint top = simdgroup / 2 * 16, left = simdgroup % 2 * 16;
  simdgroup_float8x8 sum[2][2], total[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i / 2][i % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    total[i / 2][i % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  for (uint unit = begin; unit < end; ++unit) {
    // 1. Fill both tiles, in T. Tokens and rows past the end are zeros.
    const ulong group = ulong(row) * groups + unit / units_per_group;
    const float scale = row < outputs ? float(scales[group]) : 0.0f;
    const float bias = row < outputs ? float(biases[group]) : 0.0f;
#pragma unroll
    for (uint i = 0; i < 8; ++i) {
      x_tile[r * STRIDE + c + i] =
          token < tokens ? T(x[ulong(token) * inputs + unit * 32 + c + i]) : T(0);
      const uint code =
          row < outputs ? code_at<BITS>(packed + (ulong(row) * units + unit) * BITS, c + i) : 0;
      w_tile[r * STRIDE + c + i] = T(scale * float(code) + bias);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // 2. Multiply eight columns at a time. The tile of w is loaded transposed.
    for (uint k = 0; k < 32; k += 8) {
      simdgroup_matrix<T, 8, 8> x_part[2], w_part[2];
#pragma unroll
      for (uint i = 0; i < 2; ++i) {
        simdgroup_load(x_part[i], x_tile + (top + 8 * i) * STRIDE + k, STRIDE);
        simdgroup_load(w_part[i], w_tile + (left + 8 * i) * STRIDE + k, STRIDE, ulong2(0, 0), true);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        simdgroup_multiply_accumulate(sum[i / 2][i % 2], x_part[i / 2], w_part[i % 2],
                                      sum[i / 2][i % 2]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // 3. At the end of a split, add its sum to the total.
    if ((unit + 1) % split_units == 0 || unit + 1 == end) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total[i / 2][i % 2].thread_elements() += sum[i / 2][i % 2].thread_elements();
        sum[i / 2][i % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
    }
  }

  // 4. Write the tile through threadgroup memory, because it may extend beyond the edges of y.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    simdgroup_store(total[i / 2][i % 2], y_tile + (top + i / 2 * 8) * 32 + left + i % 2 * 8, 32);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < 32 * 32; i += 128) {
    const uint y_token = first_token + i / 32, y_row = first_row + i % 32;
    if (y_token < tokens && y_row < outputs) {
      y[ulong(y_token) * outputs + y_row] = OUT(y_tile[i] + addend.at(y_token, y_row));
    }
  }
}
