// Page tables and ids with numbers outside of their arrays.
#include <cstring>
#include <vector>

#include "check/checks.h"
#include "check/data/layer.h"

namespace tinyllm::check {
namespace {

// A layer over pages whose table has numbers outside of all arrays. The sanitizer sees any access
// outside of the pages, which are allocations of their own.
void check_hostile_page_tables(const KernelTable& kernels, Type type) {
  constexpr int kTokens = 5, kPages = 3, kPageSize = 4;
  const std::vector<int32_t> numbers = {0, 2, 3, -1, INT32_MAX, INT32_MIN, 7};
  const auto any = [&] { return numbers[generator() % numbers.size()]; };
  Sequence sequence(type, kTokens, 0);
  const size_t size = size_t{kPages} * Hkv * kPageSize * D;
  Array keys = Array::random(type, size), values = Array::random(type, size);
  const auto pages_of = [&](Array& array) {
    WritablePages pages;
    pages.kv.type = type;
    pages.kv.codes.data = pages.codes = array.bytes.data();
    const int64_t row = D * size_of(type);
    pages.kv.codes.strides[2] = row, pages.kv.codes.strides[1] = kPageSize * row;
    pages.kv.codes.strides[0] = Hkv * kPageSize * row;
    return pages;
  };
  for (int round = 0; round < 40; ++round) {
    std::vector<int32_t> table(2 * kPages), starts(3), lengths(2), slots(kTokens);
    for (auto* part : {&table, &starts, &lengths, &slots}) {
      for (int32_t& number : *part) number = any();
    }
    const Phase phase = round % 2 ? Phase::decode : Phase::prefill;
    PagedAttentionLayerTask task{};
    task.projection = sequence.projection(phase);
    task.o = sequence.o.w, task.keys = pages_of(keys), task.values = pages_of(values);
    task.block_tables = table.data(), task.cu_seqlens_q = starts.data();
    task.seq_lens = lengths.data(), task.slot_mapping = slots.data();
    task.requests = 2, task.block_table_width = task.pages = kPages, task.page_size = kPageSize;
    task.decode_queries = round % 2 ? kTokens : 0, task.scale = 1, task.y = sequence.y.bytes.data();
    run_paged_attention_layer(kernels, task);
  }
}

// Ids of an embedding outside of the table must give its last row.
void check_hostile_ids(const KernelTable& kernels, Type type) {
  const Matrix table(8, E, 4, 32, type);
  const int32_t ids[] = {7, 8, -1, INT32_MAX, INT32_MIN};
  constexpr int kCount = 5;
  Array y(type, kCount * E);
  kernels.embedding_rows(table.w, ids, 0, kCount, y.bytes.data(), type);
  for (int i = 1; i < kCount; ++i) {
    expect(!std::memcmp(y.bytes.data(), y.bytes.data() + i * E * size_of(type), E * size_of(type)),
           kernels, "the last row for an id outside of the embedding");
  }
}

}  // namespace

void check_bounds(const KernelTable& kernels) {
  for (Type type : {Type::float32, Type::bfloat16}) check_hostile_page_tables(kernels, type);
  check_hostile_ids(kernels, Type::bfloat16);
}

}  // namespace tinyllm::check
