// Attention of a prefill in bfloat16 on the matrix unit: a tile of query rows over a range of keys.
//
// Keys and values are packed, up to 1 MB at once. Then sets of 32 rows go through the packed keys in
// blocks of 256, with an online softmax. Two sets take turns: while vector instructions turn the
// scores of one set into weights, the matrix unit multiplies for the other set.
#include <algorithm>
#include <utility>

#include "attention/amx/products.h"
#include "attention/parts.h"
#include "ceil_div.h"

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_AMX)

namespace {

constexpr int64_t kPackedBytes = 1 << 20;  // half of a second-level cache of 2 MB
static_assert(kPrefillSplit % kBlockKeys == 0 && kBlockKeys % kRowBatch == 0);
static_assert(kRowBatch % kPanelKeys == 0 && kAmxQueryTileRows % (2 * kSetRows) == 0);

// The most keys of any request.
int64_t most_keys(const AttentionTask& t) {
  return t.block_tables ? t.block_table_width * t.page_size : t.keys;
}

// Keys that are packed at once, at most: whole blocks that divide a split.
int64_t packed_keys(const AttentionTask& t) {
  const int64_t bytes_of_key = (key_planes(t) + 1) * t.padded_dim() * sizeof(uint16_t);
  int64_t count = kPrefillSplit;
  while (count > kBlockKeys && count * bytes_of_key > kPackedBytes) count /= 2;
  const int64_t most = round_up(most_keys(t), kPanelKeys);
  return std::min(count, std::max(most, kPanelKeys));
}

__mmask16 subnormal_lanes(Floats v) {
  constexpr int kSubnormal = 0x20;
  return _mm512_fpclass_ps_mask(bit_cast<__m512>(v), kSubnormal);
}

// Floats of a `SetSums` and its values.
int64_t sums_floats(const AttentionTask& t) {
  return sizeof(SetSums) / sizeof(float) + kSetRows * value_stride(t.padded_dim());
}

// Row sets whose sums are in memory. If a split is packed at once, two sets are finished before the
// next two begin.
int64_t stored_sets(const AttentionTask& t) {
  return packed_keys(t) < std::min(most_keys(t), kPrefillSplit) ? kAmxQueryTileRows / kSetRows : 2;
}

class AmxPrefill {
 public:
  AmxPrefill(const AttentionTask& t, const AttentionPart& part, float* partial, float* scratch)
      : t_(t),
        tile_(part.tile),
        part_keys_(part.keys),
        request_(t, part.tile.request),
        width_(t.padded_dim()),
        stored_sets_(stored_sets(t)),
        is_single_split_(part.keys.empty() ||
                         part.keys.first / kPrefillSplit == (part.keys.last - 1) / kPrefillSplit),
        is_final_(!partial),
        softmax_(t, part.tile) {
    const auto take = [&](int64_t floats) { return std::exchange(scratch, scratch + floats); };
    const int64_t keys = packed_keys(t);
    keys_ = reinterpret_cast<uint16_t*>(take(keys * key_planes(t) * width_ / 2));
    values_ = reinterpret_cast<uint16_t*>(take(keys * width_ / 2));
    sums_ = take(stored_sets_ * sums_floats(t));
    for (RowSet& set : sets_) {
      set.scores = take(kSetRows * kScoreStride);
      set.q = reinterpret_cast<uint16_t*>(take(kSetRows * width_ / 2));
    }
    set_result_ = take(PartialResult::floats(kSetRows, width_));
    unpacked_ = take(kRowBatch * width_);
    result_ = partial ? partial : scratch;
  }

  static int64_t scratch_floats(const AttentionTask& t) {
    const int64_t width = t.padded_dim();
    return packed_keys(t) * (key_planes(t) + 1) * width / 2 + stored_sets(t) * sums_floats(t) +
           2 * kSetRows * (kScoreStride + width / 2) + PartialResult::floats(kSetRows, width) +
           kRowBatch * width +
           (most_keys(t) > kPrefillSplit ? PartialResult::floats(kAmxQueryTileRows, width) : 0);
  }

  void run();

 private:
  void pack(KeyRange keys);
  void load_rows(RowSet& set, int64_t first);
  void prefetch_rows(int64_t first) const;
  void attend();
  KeyRange panels(const RowSet& set, int64_t block) const;
  void score(RowSet& set, KeyRange keys);
  void add_values(RowSet& set, KeyRange keys);
  void add_non_finite(RowSet& set, KeyRange keys);
  void finish(const RowSet& set);
  void store_rows(int64_t first, const PartialResult& result, int64_t rows) const;

  const BFloat16* row_of_q(int64_t n) const {
    return static_cast<const BFloat16*>(t_.q) + row_offset(t_, tile_, n, t_.q_strides);
  }

  BFloat16* row_of_y(int64_t n) const {
    return static_cast<BFloat16*>(t_.y) + row_offset(t_, tile_, n, t_.y_strides);
  }

  const AttentionTask& t_;
  const QueryTile& tile_;
  const KeyRange part_keys_;
  const Request request_;
  const int64_t width_;
  const int64_t stored_sets_;
  const bool is_single_split_, is_final_;
  TileRegisters tiles_;
  BlockSoftmax softmax_;
  RowSet sets_[2];
  KeyRange packed_{0, 0};  // whole panels; the last one may end after the last key
  uint16_t *keys_, *values_;
  float *sums_, *set_result_, *unpacked_;
  float* result_;  // of all rows, if they have several splits or the result is partial
  bool non_finite_[kPrefillSplit / kPanelKeys];  // panels of values with infinities or NaN
};

void AmxPrefill::run() {
  const int64_t most = packed_keys(t_);
  const bool merges = !is_final_ || !is_single_split_;
  PartialResult result(result_, tile_.rows, width_);
  if (merges) clear(result, tile_.rows, width_);
  int64_t first = part_keys_.first / kPanelKeys * kPanelKeys;
  do {
    const int64_t split_end = (first / kPrefillSplit + 1) * kPrefillSplit;
    const int64_t last = std::min({part_keys_.last, split_end, (first / most + 1) * most});
    const bool begins = first <= part_keys_.first || first % kPrefillSplit == 0;
    const bool ends = last == part_keys_.last || last == split_end;
    pack({first, last});
    for (int64_t row = 0; row < tile_.rows; row += 2 * kSetRows) {
      for (int i = 0; i < 2; ++i) {
        RowSet& set = sets_[i];
        float* memory = sums_ + (row / kSetRows + i) % stored_sets_ * sums_floats(t_);
        set.sums = reinterpret_cast<SetSums*>(memory);
        set.values = memory + sizeof(SetSums) / sizeof(float);
        load_rows(set, row + i * kSetRows);
        if (begins) {
          std::fill_n(set.sums->base, kSetRows, kMinusInfinity);
          std::fill_n(set.sums->weights, kSetRows, Floats{});
          set.sums->is_empty = true;
        }
      }
      prefetch_rows(row);
      attend();
      for (int i = 0; i < 2 && ends; ++i) finish(sets_[i]);
    }
    first = last;
  } while (first < part_keys_.last);
  if (is_final_ && merges) store_rows(0, result, tile_.rows);
}

// Packs the keys and values from `keys.first`, where a panel begins.
void AmxPrefill::pack(KeyRange keys) {
  packed_ = {keys.first, round_up(keys.last, kPanelKeys)};
  const int64_t panel = panel_numbers(t_), planes = key_planes(t_);
  for (int64_t j = keys.first; j < keys.last; j += kRowBatch) {
    const int64_t count = std::min(kRowBatch, keys.last - j);
    const int64_t n = (j - keys.first) / kPanelKeys;
    const RowPointers key_rows(t_, t_.k, tile_.request, tile_.kv_head, j, count);
    with_step_rows(t_, t_.k, key_rows, count, unpacked_,
                   [&]<typename Rows>(Rows, const RowPointers& rows) {
                     pack_key_panels<Rows>(t_, rows, count, keys_ + n * planes * panel);
                   });
    const RowPointers value_rows(t_, t_.v, tile_.request, tile_.kv_head, j, count);
    with_step_rows(t_, t_.v, value_rows, count, unpacked_,
                   [&]<typename Rows>(Rows, const RowPointers& rows) {
                     pack_value_panels<Rows>(t_, rows, count, values_ + n * panel, non_finite_ + n);
                   });
  }
}

// Sets the rows of a set from row `first` of the tile on, which may be after the last row. Queries
// of negative scales are negated, so that the largest score has the largest weight. Queries of a
// scale of zero are zero.
void AmxPrefill::load_rows(RowSet& set, int64_t first) {
  set.first = first;
  set.count = static_cast<int>(std::clamp<int64_t>(tile_.rows - first, 0, kSetRows));
  set.any = {request_.keys, 0};
  set.all = {0, request_.keys};
  const __m512i sign = _mm512_set1_epi16(t_.scale < 0 ? static_cast<int16_t>(0x8000) : 0);
  for (int n = 0; n < kSetRows; ++n) {
    uint16_t* to = set.q + n * width_;
    if (n >= set.count) {
      set.keys[n] = {0, 0};
      std::fill_n(to, width_, 0);
      continue;
    }
    const BFloat16* from = row_of_q(first + n);
    for (int64_t d = 0; d < width_; d += kStepFeatures) {
      const int64_t left = t_.dim - d;
      const __mmask32 lanes = t_.scale == 0 ? 0 : left >= kStepFeatures ? ~0u : (1u << left) - 1;
      const __m512i numbers = _mm512_maskz_loadu_epi16(lanes, from + d);
      _mm512_storeu_si512(to + d, _mm512_xor_si512(numbers, sign));
    }
    const KeyRange visible = visible_keys(t_, request_, RowIndex(t_, tile_, first + n).query);
    set.keys[n] = visible;
    set.all = {std::max(set.all.first, visible.first), std::min(set.all.last, visible.last)};
    if (visible.empty()) continue;
    set.any = {std::min(set.any.first, visible.first), std::max(set.any.last, visible.last)};
  }
}

// Prefetches the results of two sets from row `first` on, which are written soon, and the queries of
// the next two. Rows of a head are kilobytes apart, where the processor does not prefetch.
void AmxPrefill::prefetch_rows(int64_t first) const {
  constexpr int64_t kRows = 2 * kSetRows;
  for (int64_t n = first; n < std::min(first + kRows, tile_.rows); ++n) {
    const BFloat16* y = row_of_y(n);
    for (int64_t d = 0; d < t_.dim; d += kStepFeatures) __builtin_prefetch(y + d, 1);
  }
  for (int64_t n = first + kRows; n < std::min(first + 2 * kRows, tile_.rows); ++n) {
    const BFloat16* q = row_of_q(n);
    for (int64_t d = 0; d < t_.dim; d += kStepFeatures) __builtin_prefetch(q + d);
  }
}

// The panels of a block that some row of the set attends to.
KeyRange AmxPrefill::panels(const RowSet& set, int64_t block) const {
  const int64_t first = std::max({set.any.first, block * kBlockKeys, packed_.first});
  const int64_t last = std::min({set.any.last, (block + 1) * kBlockKeys, packed_.last});
  if (first >= last) return {packed_.first, packed_.first};
  return {first / kPanelKeys * kPanelKeys, round_up(last, kPanelKeys)};
}

// Adds the packed keys to the sums of both sets. Blocks are counted from key 0.
void AmxPrefill::attend() {
  const int64_t any_first = std::min(sets_[0].any.first, sets_[1].any.first);
  const int64_t any_last = std::max(sets_[0].any.last, sets_[1].any.last);
  const int64_t first = std::max(any_first, packed_.first) / kBlockKeys;
  const int64_t last = ceil_div(std::min(any_last, packed_.last), kBlockKeys);
  if (first >= last) return;
  KeyRange next = panels(sets_[0], first);
  score(sets_[0], next);
  KeyRange other = panels(sets_[1], first);
  softmax_.begin(sets_[0], next);
  score(sets_[1], other);
  softmax_.finish();
  for (int64_t block = first; block < last; ++block) {
    for (int i = 0; i < 2; ++i) {
      // The scores of the other set are of this block if i is 0, and of the next block if i is 1.
      RowSet &set = sets_[i], &waiting = sets_[1 - i];
      const KeyRange keys = panels(set, block), next_keys = panels(set, block + 1);
      softmax_.begin(waiting, panels(waiting, block + i));
      add_values(set, keys);
      score(set, next_keys);
      softmax_.finish();
    }
  }
}

void AmxPrefill::score(RowSet& set, KeyRange keys) {
  if (keys.empty()) return;
  const int64_t planes = key_planes(t_), panel = planes * panel_numbers(t_);
  const uint16_t* panels = keys_ + (keys.first - packed_.first) / kPanelKeys * panel;
  const int64_t count = keys.count() / kPanelKeys;
  if (set.count <= W) {
    multiply_keys<1>(tiles_, set, panels, count, planes, width_, softmax_);
  } else {
    multiply_keys<2>(tiles_, set, panels, count, planes, width_, softmax_);
  }
}

void AmxPrefill::add_values(RowSet& set, KeyRange keys) {
  if (keys.empty()) return;
  const int64_t first = (keys.first - packed_.first) / kPanelKeys;
  const uint16_t* panels = values_ + first * panel_numbers(t_);
  const int64_t count = keys.count() / kPanelKeys;
  if (set.count <= W) {
    multiply_values<1>(tiles_, set, panels, count, width_, softmax_);
  } else {
    multiply_values<2>(tiles_, set, panels, count, width_, softmax_);
  }
  const bool* flags = non_finite_ + first;
  if (std::find(flags, flags + count, true) != flags + count) add_non_finite(set, keys);
}

// Adds the infinities and NaN among the values, which are zero in the packed panels, to the rows
// that attend to them.
[[gnu::noinline]] void AmxPrefill::add_non_finite(RowSet& set, KeyRange keys) {
  const int64_t last = std::min(keys.last, part_keys_.last);
  for (int64_t j = keys.first; j < last; j += kPanelKeys) {
    if (!non_finite_[(j - packed_.first) / kPanelKeys]) continue;
    const int64_t count = std::min(kPanelKeys, last - j);
    const RowPointers pointers(t_, t_.v, tile_.request, tile_.kv_head, j, count);
    with_step_rows(t_, t_.v, pointers, count, unpacked_, [&]<typename Rows>(
                                                             Rows, const RowPointers& rows) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t d = 0; d < width_; d += kStepFeatures) {
          if (d >= t_.dim) break;
          alignas(64) BFloat16 numbers[kStepFeatures];
          const __m512i step = load_step<Rows>(t_.v, rows, i, d, t_.dim).rounded;
          const __mmask32 lanes = non_finite_lanes(step);
          if (!lanes) continue;
          _mm512_store_si512(numbers, step);
          for (int n = 0; n < set.count; ++n) {
            if (!set.keys[n].contains(j + i)) continue;
            const auto* weights = reinterpret_cast<BFloat16*>(set.scores + n * kScoreStride);
            const float weight = to_float(weights[j - keys.first + i]);
            float* sums = set.values + n * value_stride(t_.padded_dim()) + d;
            for (uint32_t left = lanes; left; left &= left - 1) {
              const int lane = std::countr_zero(left);
              sums[lane] += weight * to_float(numbers[lane]);
            }
          }
        }
      }
    });
  }
}

// Stores the sums of a set after its last key of a split: as the final result, or merged with the
// results of earlier splits.
void AmxPrefill::finish(const RowSet& set) {
  if (set.count == 0) return;
  PartialResult next(set_result_, kSetRows, width_);
  for (int n = 0; n < set.count; ++n) {
    float* to = next.values + n * width_;
    const float* from = set.values + n * value_stride(t_.padded_dim());
    for (int64_t d = 0; d < width_; d += W) {
      // The matrix unit reads subnormal numbers as zero, so a row that meets more blocks loses them.
      const __m512 v = set.sums->is_empty ? _mm512_setzero_ps() : _mm512_loadu_ps(from + d);
      const __mmask16 kept =
          _mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(0x1p-126f), _CMP_NLT_UQ);
      _mm512_storeu_ps(to + d, _mm512_maskz_mov_ps(kept, v));
    }
    next.row_max[n] = set.sums->base[n] * kLn2;
    next.row_sum[n] = sum(set.sums->weights[n]);
  }
  if (is_final_ && is_single_split_) return store_rows(set.first, next, set.count);
  PartialResult result(result_, tile_.rows, width_);
  result.values += set.first * width_;
  result.row_max += set.first, result.row_sum += set.first;
  merge(result, next, set.count, width_);
}

// Stores results as rows of the tile from `first` on, with the bits of `store_row`, in a third of
// its instructions.
void AmxPrefill::store_rows(int64_t first, const PartialResult& result, int64_t rows) const {
  for (int64_t n = 0; n < rows; ++n) {
    const float* values = result.values + n * width_;
    const float row_sum = result.row_sum[n], factor = row_sum == 0 ? 0.0f : 1 / row_sum;
    BFloat16* y = row_of_y(first + n);
    __mmask16 subnormal = 0;
    for (int64_t d = 0; d < t_.dim; d += kStepFeatures) {
      const Floats a = load(values + d) * factor, b = load(values + d + W) * factor;
      subnormal |= subnormal_lanes(a) | subnormal_lanes(b);
      const int64_t left = t_.dim - d;
      const __mmask32 lanes = left >= kStepFeatures ? ~0u : (1u << left) - 1;
      _mm512_mask_storeu_epi16(y + d, lanes, bit_cast<__m512i>(to_bfloat16_pairs(a, b)));
    }
    // The instruction that rounds reads subnormal numbers as zero.
    if (subnormal) store_row(t_, tile_, first + n, values, row_sum);
  }
}

}  // namespace

bool uses_amx(const AttentionTask& t) { return t.type == Type::bfloat16; }

int64_t amx_prefill_scratch(const AttentionTask& t) { return AmxPrefill::scratch_floats(t); }

void amx_prefill_part(const AttentionTask& t, const AttentionPart& part, float* partial,
                      float* scratch) {
  AmxPrefill(t, part, partial, scratch).run();
}

#else

bool uses_amx(const AttentionTask&) { return false; }
int64_t amx_prefill_scratch(const AttentionTask&) { return 0; }
void amx_prefill_part(const AttentionTask&, const AttentionPart&, float*, float*) {}

#endif  // TINYLLM_AMX

}  // namespace tinyllm::TINYLLM_ISA
