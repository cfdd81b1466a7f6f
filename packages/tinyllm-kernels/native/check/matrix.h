// Packed numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "array.h"

namespace tinyllm::check {

// A packed matrix of random bits, and the numbers that its codes stand for.
struct Matrix {
  Matrix(int rows, int columns, int bits, int group, Type type)
      : codes(size_t(rows) * columns * bits / 8),
        scales(Array::random(type, size_t(rows) * columns / group)),
        biases(Array::random(type, size_t(rows) * columns / group)) {
    for (uint8_t& byte : codes) byte = generator();
    w = {codes.data(), scales.bytes.data(), biases.bytes.data(), rows, columns, bits, group,
         Mode::affine, type};
  }

  double at(int n, int k) const {
    size_t bit = (size_t(n) * w.columns + k) * w.bits;
    unsigned code = 0;
    for (int i = 0; i < w.bits; ++i, ++bit) code |= (codes[bit / 8] >> bit % 8 & 1u) << i;
    size_t group = (size_t(n) * w.columns + k) / w.group;
    return code * scales.at(group) + biases.at(group);
  }

  std::vector<uint8_t> codes;
  Array scales, biases;
  Weights w;
};

}  // namespace tinyllm::check
