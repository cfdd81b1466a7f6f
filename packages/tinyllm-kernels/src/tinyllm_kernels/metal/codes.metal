// Affine codes: a number is scale * code + bias, with a code of BITS bits. Codes are packed lowest
// bit first. For any width, 32 codes are BITS whole words of one quantization group.
#include <metal_stdlib>
using namespace metal;

// Returns code `i` of the row that begins at `words`.
template <int BITS, typename W>
inline uint code_at(W words, uint i) {
  const uint bit = i * BITS, shift = bit % 32;
  uint code = words[bit / 32] >> shift;
  if (32 % BITS != 0 && shift + BITS > 32) {  // the rest is in the next word
    code |= words[bit / 32 + 1] << (32 - shift);
  }
  return code & ((1u << BITS) - 1);
}
