// Arrays of random numbers, and the comparison of results with float64.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "dispatch/kernel_table.h"
#include "types.h"

namespace tinyllm::check {

inline std::mt19937_64 generator(0);
inline int failures = 0;

// A random number of mean 0 and variance 1: the sum of four uniform numbers, whose mean is 2 and
// whose variance is 1/3. With a logarithm for each, numbers took a third of the time of all checks.
inline double normal() {
  const uint64_t bits = generator();
  const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<double>(sum) / 0xffff - 2) * 1.7320508075688772;
}

// Numbers of one type in an allocation of exactly their size, so that a sanitizer sees each
// access beyond the end.
struct Array {
  Array(Type type, size_t size) : type(type), bytes(size * size_of(type)) {}

  double at(size_t i) const {
    const void* data = bytes.data();
    switch (type) {
      case Type::float32: return static_cast<const float*>(data)[i];
      case Type::float16: return to_float(static_cast<const Float16*>(data)[i]);
      default: return to_float(static_cast<const BFloat16*>(data)[i]);
    }
  }

  // All numbers.
  std::vector<double> numbers() const {
    std::vector<double> found(bytes.size() / size_of(type));
    for (size_t i = 0; i < found.size(); ++i) found[i] = at(i);
    return found;
  }

  void set(size_t i, double value) {
    void* data = bytes.data();
    float x = static_cast<float>(value);
    switch (type) {
      case Type::float32: static_cast<float*>(data)[i] = x; break;
      case Type::float16: static_cast<Float16*>(data)[i] = from_float<Float16>(x); break;
      default: static_cast<BFloat16*>(data)[i] = from_float<BFloat16>(x); break;
    }
  }

  static Array random(Type type, size_t size) {
    Array array(type, size);
    for (size_t i = 0; i < size; ++i) array.set(i, normal());
    return array;
  }

  Type type;
  std::vector<char> bytes;
};

inline double dot(const double* a, const double* b, int64_t size) {
  double total = 0;
  for (int64_t i = 0; i < size; ++i) total += a[i] * b[i];
  return total;
}

// Adds `factor` times `size` numbers to as many sums.
inline void add_scaled(double factor, const double* numbers, int64_t size, double* sums) {
  for (int64_t i = 0; i < size; ++i) sums[i] += factor * numbers[i];
}

// Tolerances of the contract, relative to the largest expected number.
inline double tolerance(Type type) {
  return type == Type::float32 ? 1e-5 : type == Type::float16 ? 2e-3 : 1.6e-2;
}

// Compares with a tolerance relative to the largest expected number.
inline void compare(const KernelTable& kernels, const char* what, const Array& actual,
                    const std::vector<double>& expected, double tolerance) {
  double size = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    size = std::max(size, std::fabs(expected[i]));
    error = std::max(error, std::fabs(actual.at(i) - expected[i]));
  }
  if (error <= tolerance * size) return;
  std::printf("%s %s: error %g over %g\n", kernels.name, what, error, tolerance * size);
  ++failures;
}

inline void compare(const KernelTable& kernels, const char* what, const Array& actual,
                    const std::vector<double>& expected) {
  compare(kernels, what, actual, expected, tolerance(actual.type));
}

// Counts and prints a failure unless `holds`.
inline void expect(bool holds, const KernelTable& kernels, const char* expectation) {
  if (holds) return;
  std::printf("%s: expected %s\n", kernels.name, expectation);
  ++failures;
}

}  // namespace tinyllm::check
