#include "paged_attention_block.h"

#include <cstring>

#include "product.h"
#include "run_attention.h"

namespace tinyllm {

void run(const Kernels& kernels, const PagedAttentionBlockTask& t) {
  AttentionInputsTask in = t.inputs;
  const int64_t tokens = in.batch * in.length, size = size_of(in.type);
  const int64_t width = in.heads * in.dim, kv_width = in.kv_heads * in.dim;
  auto q = aligned<char>(tokens * width * size);
  auto k = aligned<char>(tokens * kv_width * size), v = aligned<char>(tokens * kv_width * size);
  in.to_q = {q.get(), {in.length * width, in.dim, width}};
  in.to_k = {k.get(), {in.length * kv_width, in.dim, kv_width}};
  in.to_v = {v.get(), {in.length * kv_width, in.dim, kv_width}};
  run(kernels, in);
  for (const auto& [pages, rows] : {std::pair(&t.keys, k.get()), {&t.values, v.get()}}) {
    pages->write(kernels, rows, in.type, tokens, in.kv_heads, in.dim, t.slots, t.pages, t.page);
  }

  auto heads = aligned<char>(tokens * width * size);
  std::memset(heads.get(), 0, tokens * width * size);  // tokens that belong to no request
  AttentionTask attention;
  attention.q = q.get(), attention.y = heads.get();
  attention.q_strides[1] = attention.y_strides[1] = in.dim;
  attention.q_strides[2] = attention.y_strides[2] = width;
  attention.k = t.keys.kv, attention.v = t.values.kv;
  attention.type = in.type;
  attention.heads = in.heads, attention.kv_heads = in.kv_heads, attention.dim = in.dim;
  attention.requests = t.requests, attention.blocks = t.blocks;
  attention.block_table = t.block_table, attention.query_starts = t.query_starts;
  attention.context_lengths = t.context_lengths;
  attention.tokens = tokens, attention.pages = t.pages, attention.page = t.page;
  attention.scale = t.scale, attention.causal = true, attention.window = t.window;
  attention.decode_queries = t.decode_queries;
  run_attention(kernels, attention);

  Operand joined(kernels, heads.get(), in.type, tokens, static_cast<int>(width), in.phase);
  multiply(kernels, {{&joined, &t.o, t.o_bias, t.residual, t.y}});
}

}  // namespace tinyllm
