// Causal convolution of all tokens of a sequence.
#include "recurrent/causal_conv.h"

namespace tinyllm::TINYLLM_TIER {

int64_t causal_conv_scratch(const CausalConvTask& t, int64_t channels) {
  return (t.width - 1) * channels;
}

void causal_conv_part(const CausalConvTask& t, int64_t sequence, int64_t first, int64_t last,
                      float* scratch) {
  with_type(t.type, [&]<typename T>(T*) {
    const SequenceTokens tokens(t.slots, sequence);
    const ConvChannels<T> channels(t, tokens, first, last - first, reinterpret_cast<T*>(scratch));
    for (int64_t token = tokens.first; token < tokens.last; ++token) {
      channels.convolve(token, static_cast<T*>(t.y) + token * t.channels + first);
      const int64_t slot = slot_or_none(t.slots.saves[token], t.slots);
      if (slot >= 0) channels.save(token, slot);
    }
  });
}

}  // namespace tinyllm::TINYLLM_TIER
