// Packed numbers.
#pragma once

#include <cstdint>
#include <cstring>
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

  // The same matrix with so many rows side by side.
  Matrix interleaved(int side) const {
    Matrix found = *this;
    interleave(codes.data(), found.codes.data(), 4, size_t(w.columns) * w.bits / 32, side);
    const size_t groups = w.columns / w.group;
    interleave(scales.bytes.data(), found.scales.bytes.data(), 2, groups, side);
    interleave(biases.bytes.data(), found.biases.bytes.data(), 2, groups, side);
    found.w = w;
    found.w.data = found.codes.data();
    found.w.scales = found.scales.bytes.data(), found.w.biases = found.biases.bytes.data();
    found.w.interleaved = side;
    return found;
  }

  std::vector<uint8_t> codes;
  Array scales, biases;
  Weights w;

 private:
  // Rows of `width` items of so many bytes: item i of row n goes where those of its block are.
  void interleave(const void* from, void* to, size_t size, size_t width, size_t side) const {
    for (size_t n = 0; n < size_t(w.rows); ++n) {
      for (size_t i = 0; i < width; ++i) {
        const size_t at = (n / side * width + i) * side + n % side;
        std::memcpy(static_cast<char*>(to) + at * size,
                    static_cast<const char*>(from) + (n * width + i) * size, size);
      }
    }
  }
};

}  // namespace tinyllm::check
