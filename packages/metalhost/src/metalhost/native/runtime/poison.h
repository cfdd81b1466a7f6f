// What memory holds that nobody has written: 0xffb5 again and again, which is NaN as a float, as a
// half and as a bfloat, and an index far out of bounds as an integer.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace metalhost {

inline void poison(void* memory, size_t bytes) {
  unsigned char* p = static_cast<unsigned char*>(memory);
  for (size_t i = 0; i < bytes; ++i) p[i] = i % 2 ? 0xff : 0xb5;
}

}  // namespace metalhost
