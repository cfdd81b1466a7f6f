#include "layers/attention.h"

#include <cstring>

#include "attention/plan.h"
#include "layers/products/products.h"
#include "runtime/parallel.h"

namespace tinyllm {

void run_attention(const KernelTable& kernels, const AttentionTask& task) {
  ThreadPool& pool = ThreadPool::shared();
  const AttentionPlan plan(task, kernels.attention_query_tile_rows(task), pool.threads());
  const Aligned<float> partials = aligned<float>(plan.partial_floats);
  Scratch scratch(kernels.attention_scratch(task));
  pool.run(static_cast<int64_t>(plan.parts.size()), [&](int64_t part, int thread) {
    kernels.attention_part(task, plan, part, partials.get(), scratch[thread]);
  });
  pool.run(static_cast<int64_t>(plan.merges.size()), [&](int64_t merge, int) {
    kernels.attention_merge(task, plan.merges[merge], partials.get());
  });
}

namespace {

// Normalizes and rotates a head of some tokens of a projection, and writes it to its output.
struct NormAndRope {
  const ProjectTask& t;
  const KernelTable& kernels;
  const char* rows;  // B L heads D; the output may be the same memory
  int64_t stride;    // numbers from a token to the next
  Norm norm;
  const Heads& to;
  const float* table;  // see RopeTask

  void operator()(int64_t head, int64_t first_token, int64_t last_token) const {
    const int64_t size = size_of(t.type);
    RopeTask rope{};
    rope.x = rows + head * t.dim * size;
    rope.y = static_cast<char*>(to.data) + head * to.strides[1] * size;
    rope.strides[0] = t.length * stride;
    rope.strides[1] = stride;
    rope.y_strides[0] = to.strides[0];
    rope.y_strides[1] = to.strides[2];
    rope.table = table, rope.shares_positions = t.positions.are_shared;
    rope.length = t.length, rope.heads = 1, rope.dim = t.dim;
    rope.pairs = t.rope.pairs;
    rope.traditional = t.rope.traditional, rope.type = t.type;
    rope.norm_weight = norm.weight, rope.eps = norm.eps;
    kernels.rope_tokens(rope, first_token, last_token);
  }
};

// Copies a head of some tokens of the values to its output.
struct CopyValues {
  const ProjectTask& t;
  const char* rows;  // B L heads D
  int64_t stride;    // numbers from a token to the next

  void operator()(int64_t head, int64_t first_token, int64_t last_token) const {
    const int64_t size = size_of(t.type), bytes = t.dim * size;
    for (int64_t n = first_token; n < last_token; ++n) {
      const int64_t at = n / t.length * t.to_v.strides[0] + head * t.to_v.strides[1] +
                         n % t.length * t.to_v.strides[2];
      std::memcpy(static_cast<char*>(t.to_v.data) + at * size,
                  rows + n * stride * size + head * bytes, bytes);
    }
  }
};

// Returns the keys, or values, of a dense cache for reading.
KeyValues readable(const Heads& cache, Type type) {
  KeyValues kv;
  kv.codes.data = static_cast<const char*>(cache.data);
  for (int i = 0; i < 3; ++i) kv.codes.strides[i] = cache.strides[i] * size_of(type);
  kv.type = type;
  return kv;
}

// Returns the rows of a dense cache from token `offset` on.
Heads rows_from(Heads cache, int64_t offset, Type type) {
  cache.data = static_cast<char*>(cache.data) + offset * cache.strides[2] * size_of(type);
  return cache;
}

// The gates of the heads of all tokens, or nothing.
class OutputGate {
 public:
  // Makes memory for the gates, which the projection writes.
  explicit OutputGate(ProjectTask& t) : t_(t) {
    if (!t.gate.rows) return;
    gates_ = aligned<char>(t.batch * t.length * t.gate.rows * size_of(t.type));
    t.to_gate = gates_.get();
  }

  // Multiplies the heads of each token, which are `stride` numbers apart.
  void apply(const KernelTable& kernels, char* heads, int64_t stride) const {
    if (!gates_) return;
    const int64_t width = t_.gate.rows, size = size_of(t_.type);
    parallel_for(t_.batch * t_.length, width, [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; ++n) {
        char* row = heads + n * stride * size;
        kernels.output_gate_range({row, gates_.get() + n * width * size, row, t_.type}, 0, width);
      }
    });
  }

 private:
  const ProjectTask& t_;
  Aligned<char> gates_;
};

}  // namespace

void run_projections(const KernelTable& kernels, const ProjectTask& t) {
  const int64_t rows = t.batch * t.length, size = size_of(t.type);
  const int width = t.q.columns;
  const auto padded = [&](int64_t columns) {
    return row_stride(kernels, t.type, t.phase, columns);
  };
  const int64_t x_stride = padded(width);
  const auto normalized = normalize(kernels, t.norm, t.x, rows, width, t.type, x_stride);
  Operand operand(kernels, normalized.get(), t.type, rows, width, t.phase, x_stride);
  const int64_t q_stride = padded(t.q.rows), k_stride = padded(t.k.rows);
  const int64_t v_stride = padded(t.v.rows);
  // The product writes queries to their output if its rows have the same gaps. They are then
  // normalized and rotated there.
  const int64_t* to = t.to_q.strides;
  const bool in_place = to[0] == t.length * q_stride && to[1] == t.dim && to[2] == q_stride;
  Aligned<char> other;
  if (!in_place) other = aligned<char>(rows * q_stride * size);
  char* q = in_place ? static_cast<char*>(t.to_q.data) : other.get();
  auto k = aligned<char>(rows * k_stride * size), v = aligned<char>(rows * v_stride * size);
  RopeTable own;
  const float* table = (t.rope_table ? *t.rope_table : own).get(kernels, t.positions, t.rope);
  const NormAndRope queries{t, kernels, q, q_stride, t.q_norm, t.to_q, table};
  const NormAndRope keys{t, kernels, k.get(), k_stride, t.k_norm, t.to_k, table};
  const Epilogue query_heads{t.dim, queries}, key_heads{t.dim, keys};
  const Epilogue value_heads{t.dim, CopyValues{t, v.get(), v_stride}};
  std::vector<Product> products = {
      {&operand, &t.q, t.q_bias, nullptr, q, q_stride, &query_heads},
      {&operand, &t.k, t.k_bias, nullptr, k.get(), k_stride, &key_heads},
      {&operand, &t.v, t.v_bias, nullptr, v.get(), v_stride, &value_heads}};
  if (t.to_gate) products.push_back({&operand, &t.gate, nullptr, nullptr, t.to_gate});
  multiply(kernels, products);
}

void run_attention_layer(const KernelTable& kernels, const AttentionLayerTask& t) {
  ProjectTask in = t.projection;
  const int64_t tokens = in.batch * in.length, width = in.heads * in.dim;
  const int64_t stride = row_stride(kernels, in.type, in.phase, width);
  auto heads = aligned<char>(tokens * stride * size_of(in.type));
  auto q = aligned<char>(tokens * stride * size_of(in.type));
  in.to_q = {q.get(), {in.length * stride, in.dim, stride}};
  in.to_k = rows_from(t.keys, t.offset, in.type);
  in.to_v = rows_from(t.values, t.offset, in.type);
  const OutputGate gate(in);
  run_projections(kernels, in);

  AttentionTask attention;
  attention.q = q.get(), attention.y = heads.get();
  attention.k = readable(t.keys, in.type), attention.v = readable(t.values, in.type);
  attention.type = in.type;
  for (int i = 0; i < 3; ++i) {
    attention.q_strides[i] = attention.y_strides[i] = in.to_q.strides[i];
  }
  attention.requests = in.batch, attention.length = in.length;
  attention.heads = in.heads, attention.kv_heads = in.kv_heads, attention.dim = in.dim;
  attention.keys = t.offset + in.length;
  attention.scale = t.scale;
  attention.causal = in.length > 1;
  attention.decode_queries = in.phase == Phase::decode ? in.length : 0;
  run_attention(kernels, attention);
  gate.apply(kernels, heads.get(), stride);

  Operand joined_heads(kernels, heads.get(), in.type, tokens, static_cast<int>(width), in.phase,
                       stride);
  multiply(kernels, {{&joined_heads, &t.o, t.o_bias, in.x, t.y}});
}

void run_paged_attention_layer(const KernelTable& kernels, const PagedAttentionLayerTask& t) {
  ProjectTask in = t.projection;
  const int64_t tokens = in.batch * in.length, size = size_of(in.type);
  const int64_t width = in.heads * in.dim, kv_width = in.kv_heads * in.dim;
  const int64_t stride = row_stride(kernels, in.type, in.phase, width);
  auto q = aligned<char>(tokens * stride * size);
  auto k = aligned<char>(tokens * kv_width * size), v = aligned<char>(tokens * kv_width * size);
  in.to_q = {q.get(), {in.length * stride, in.dim, stride}};
  in.to_k = {k.get(), {in.length * kv_width, in.dim, kv_width}};
  in.to_v = {v.get(), {in.length * kv_width, in.dim, kv_width}};
  const OutputGate gate(in);
  run_projections(kernels, in);
  for (const auto& [pages, rows] : {std::pair(&t.keys, k.get()), {&t.values, v.get()}}) {
    pages->write(kernels, rows, in.type, tokens, in.kv_heads, in.dim, t.slot_mapping, t.pages, t.page_size);
  }

  auto heads = aligned<char>(tokens * stride * size);
  // Tokens of no request stay zero.
  if (t.cu_seqlens_q[0] > 0 || t.cu_seqlens_q[t.requests] < tokens) {
    std::memset(heads.get(), 0, tokens * stride * size);
  }
  AttentionTask attention;
  attention.q = q.get(), attention.y = heads.get();
  attention.q_strides[1] = attention.y_strides[1] = in.dim;
  attention.q_strides[2] = attention.y_strides[2] = stride;
  attention.k = t.keys.kv, attention.v = t.values.kv;
  attention.type = in.type;
  attention.heads = in.heads, attention.kv_heads = in.kv_heads, attention.dim = in.dim;
  attention.requests = t.requests, attention.block_table_width = t.block_table_width;
  attention.block_tables = t.block_tables, attention.cu_seqlens_q = t.cu_seqlens_q;
  attention.seq_lens = t.seq_lens;
  attention.tokens = tokens, attention.pages = t.pages, attention.page_size = t.page_size;
  attention.scale = t.scale, attention.causal = true, attention.window = t.window;
  attention.decode_queries = t.decode_queries;
  run_attention(kernels, attention);
  gate.apply(kernels, heads.get(), stride);

  Operand joined_heads(kernels, heads.get(), in.type, tokens, static_cast<int>(width), in.phase,
                       stride);
  multiply(kernels, {{&joined_heads, &t.o, t.o_bias, in.x, t.y}});
}

}  // namespace tinyllm
