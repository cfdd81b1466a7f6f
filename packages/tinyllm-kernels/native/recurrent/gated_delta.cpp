// The gated delta rule of all tokens of a sequence.
#include "recurrent/gated_delta.h"

namespace tinyllm::TINYLLM_ISA {

int64_t gated_delta_scratch(const GatedDeltaTask& t) { return DeltaScratch::floats(t); }

void gated_delta_part(const GatedDeltaTask& t, int64_t sequence, int64_t head, float* scratch) {
  with_type(t.type, [&]<typename T>(T*) {
    const SequenceTokens tokens(t.slots, sequence);
    KeyHead<T> heads(t, head, tokens, scratch);
    const int64_t values = t.value_heads / t.key_heads * t.value_dim;
    const int64_t o_stride = t.value_heads * t.value_dim;
    for_each_segment(t.slots, tokens, [&](const Segment& segment) {
      const SegmentInputs<T> in{
          static_cast<const T*>(t.q) + segment.first * t.q_stride + head * t.key_dim,
          static_cast<const T*>(t.k) + segment.first * t.k_stride + head * t.key_dim,
          static_cast<const T*>(t.v) + segment.first * t.v_stride + head * values,
          t.q_stride, t.k_stride, t.v_stride};
      heads.compute(segment, in, static_cast<T*>(t.o) + segment.first * o_stride + head * values,
                    o_stride);
    });
  });
}

}  // namespace tinyllm::TINYLLM_ISA
