// Quantized numbers: scale * code + bias, a code being BITS bits. Codes are packed lowest bit first,
// so that 32 of them are BITS whole words, whatever BITS is, and belong to one group.
#include <metal_stdlib>
using namespace metal;

// Code `i` of those that begin at `words`.
template <int BITS, typename W>
inline uint code_at(W words, uint i) {
  const uint bit = i * BITS, shift = bit % 32;
  uint code = words[bit / 32] >> shift;
  if (32 % BITS != 0 && shift + BITS > 32) {  // the rest is in the next word
    code |= words[bit / 32 + 1] << (32 - shift);
  }
  return code & ((1u << BITS) - 1);
}
