// The mixer of a gated DeltaNet layer: convolution, delta rule and norm of some heads of a sequence in
// one part.
//
// A part passes each segment of tokens through all three steps, so that intermediate results stay in
// a cache and threads synchronize once.
#include "recurrent/causal_conv.h"
#include "recurrent/gated_delta.h"
#include "recurrent/gated_norm.h"

namespace tinyllm::TINYLLM_ISA {
namespace {

// The channels of a part: the query and the key of a key head, and the values of its value heads.
struct PartChannels {
  PartChannels(const GatedDeltaTask& t, int64_t head)
      : values(t.value_heads / t.key_heads * t.value_dim),
        first{head * t.key_dim, (t.key_heads + head) * t.key_dim,
              2 * t.key_heads * t.key_dim + head * values},
        count{t.key_dim, t.key_dim, values} {}

  int64_t total() const { return count[0] + count[1] + count[2]; }

  int64_t values;
  int64_t first[3], count[3];
};

// Numbers of scratch memory: the inputs before the pass, and the tokens of a segment before and after
// the delta rule.
int64_t numbers_of_part(const MixerTask& t) {
  const PartChannels channels(t.delta, 0);
  return (t.conv.width - 1) * channels.total() +
         kSegmentTokens * (channels.total() + channels.values);
}

template <typename T>
void mix(const MixerTask& t, int64_t sequence, int64_t head, float* scratch) {
  const GatedDeltaTask& delta = t.delta;
  const SequenceTokens tokens(delta.slots, sequence);
  KeyHead<T> heads(delta, head, tokens, scratch);
  const PartChannels channels(delta, head);
  T* history = reinterpret_cast<T*>(heads.end_of_scratch());
  const auto conv_of = [&](int i) {
    T* own = history;
    history += (t.conv.width - 1) * channels.count[i];
    return ConvChannels<T>(t.conv, tokens, channels.first[i], channels.count[i], own);
  };
  const ConvChannels<T> q = conv_of(0), k = conv_of(1), v = conv_of(2);
  T* const convolved = history;
  T* const o = convolved + kSegmentTokens * channels.total();
  const int64_t stride = channels.total(), dim = delta.value_dim;
  const int64_t first_value = head * channels.values;
  for_each_segment(delta.slots, tokens, [&](const Segment& segment) {
    q.convolve(segment.first, segment.last, convolved, stride);
    k.convolve(segment.first, segment.last, convolved + delta.key_dim, stride);
    v.convolve(segment.first, segment.last, convolved + 2 * delta.key_dim, stride);
    if (segment.save >= 0) {
      for (const ConvChannels<T>* part : {&q, &k, &v}) part->save(segment.last - 1, segment.save);
    }
    heads.compute(segment,
                  {convolved, convolved + delta.key_dim, convolved + 2 * delta.key_dim, stride,
                   stride, stride},
                  o, channels.values);
    for (int64_t n = 0; n < segment.count(); ++n) {
      const int64_t token = segment.first + n;
      const T* gate = static_cast<const T*>(t.norm.gate) + token * t.gate_stride + first_value;
      T* y = static_cast<T*>(t.norm.y) + token * t.y_stride + first_value;
      for (int64_t i = 0; i < channels.values; i += dim) {
        gated_norm(o + n * channels.values + i, gate + i, static_cast<const T*>(t.norm.weight), y + i,
                   dim, t.norm.eps);
      }
    }
  });
}

}  // namespace

int64_t mixer_scratch(const MixerTask& t) {
  return DeltaScratch::floats(t.delta) + numbers_of_part(t);
}

void mixer_part(const MixerTask& t, int64_t sequence, int64_t head, float* scratch) {
  with_type(t.delta.type, [&]<typename T>(T*) { mix<T>(t, sequence, head, scratch); });
}

}  // namespace tinyllm::TINYLLM_ISA
