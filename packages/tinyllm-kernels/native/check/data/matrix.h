// Packed matrices, decoded bit by bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check/data/array.h"

namespace tinyllm::check {

// Decodes E2M1.
inline double e2m1(unsigned code) {
  const double sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}

// Decodes E4M3.
inline double e4m3(unsigned code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = std::ldexp(exponent ? 8 + mantissa : mantissa, std::max(exponent, 1) - 10);
  return code & 0x80 ? -size : size;
}

// A packed matrix of random codes that can be read as numbers.
struct Matrix {
  Matrix(int rows, int columns, int bits, int group, Type type)
      : codes(size_t(rows) * columns * bits / 8),
        scales(Array::random(type, size_t(rows) * columns / group)),
        biases(Array::random(type, size_t(rows) * columns / group)) {
    for (uint8_t& byte : codes) byte = generator();
    w = {codes.data(), scales.bytes.data(), biases.bytes.data(), rows, columns, bits, group,
         Mode::affine, type};
  }

  // A matrix of mode mxfp4, mxfp8 or nvfp4, whose codes are floats and whose scales are bytes.
  Matrix(int rows, int columns, Mode mode)
      : codes(size_t(rows) * columns * (mode == Mode::mxfp8 ? 8 : 4) / 8),
        powers(size_t(rows) * columns / (mode == Mode::nvfp4 ? 16 : 32)),
        scales(Type::float32, 0),
        biases(Type::float32, 0) {
    // Only even codes of E4M3, because NaN is odd.
    for (uint8_t& byte : codes) byte = generator() & (mode == Mode::mxfp8 ? 0xfe : 0xff);
    // Scales from 0.5 (E4M3) or 2^-11 (E8M0), so that float16 can hold the sums.
    for (uint8_t& byte : powers) byte = (mode == Mode::nvfp4 ? 0x30 : 116) + generator() % 8;
    w = {codes.data(), powers.data(), nullptr, rows, columns, mode == Mode::mxfp8 ? 8 : 4,
         mode == Mode::nvfp4 ? 16 : 32, mode, Type::uint8};
  }

  double at(int n, int k) const {
    size_t bit = (size_t(n) * w.columns + k) * w.bits;
    unsigned code = 0;
    for (int i = 0; i < w.bits; ++i, ++bit) code |= (codes[bit / 8] >> bit % 8 & 1u) << i;
    size_t group = (size_t(n) * w.columns + k) / w.group;
    if (w.mode != Mode::affine) {
      const unsigned power = powers[group];
      const double scale = w.mode == Mode::nvfp4 ? e4m3(power) : std::ldexp(1, int(power) - 127);
      return (w.bits == 4 ? e2m1(code) : e4m3(code)) * scale;
    }
    return code * scales.at(group) + biases.at(group);
  }

  // All numbers, row by row.
  std::vector<double> numbers() const {
    std::vector<double> found(size_t(w.rows) * w.columns);
    for (size_t i = 0; i < found.size(); ++i) found[i] = at(i / w.columns, i % w.columns);
    return found;
  }

  // Returns the matrix with groups of `side` rows interleaved.
  Matrix interleaved(int side) const {
    Matrix found = *this;
    interleave(codes.data(), found.codes.data(), 4, size_t(w.columns) * w.bits / 32, side);
    const size_t groups = w.columns / w.group;
    found.w = w;
    found.w.data = found.codes.data();
    if (w.mode == Mode::affine) {
      interleave(scales.bytes.data(), found.scales.bytes.data(), 2, groups, side);
      interleave(biases.bytes.data(), found.biases.bytes.data(), 2, groups, side);
      found.w.scales = found.scales.bytes.data(), found.w.biases = found.biases.bytes.data();
    } else {
      interleave(powers.data(), found.powers.data(), 1, groups, side);
      found.w.scales = found.powers.data();
    }
    found.w.interleaved = side;
    return found;
  }

  std::vector<uint8_t> codes;
  std::vector<uint8_t> powers;  // the scales of float codes
  Array scales, biases;
  Weights w;

 private:
  // Interleaves rows of `width` items of `size` bytes in groups of `side` rows.
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
