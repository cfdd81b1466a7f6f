// Causal convolution of all tokens of a sequence.
#include "recurrent/causal_conv.h"

namespace tinyllm::TINYLLM_ISA {

int64_t causal_conv_scratch(const CausalConvTask& t, int64_t channels) {
  return (t.width - 1) * channels;
}

void causal_conv_part(const CausalConvTask& t, int64_t sequence, int64_t first, int64_t last,
                      float* scratch) {
  with_type(t.type, [&]<typename T>(T*) {
    const SequenceTokens tokens(t.slots, sequence);
    const ConvChannels<T> channels(t, tokens, first, last - first, reinterpret_cast<T*>(scratch));
    for_each_segment(t.slots, tokens, [&](const Segment& segment) {
      T* y = static_cast<T*>(t.y) + segment.first * t.channels + first;
      channels.convolve(segment.first, segment.last, y, t.channels);
      if (segment.save >= 0) channels.save(segment.last - 1, segment.save);
    });
  });
}

}  // namespace tinyllm::TINYLLM_ISA
