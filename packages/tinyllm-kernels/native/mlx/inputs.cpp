#include "mlx/inputs.h"

#include <cstring>
#include <limits>
#include <stdexcept>

namespace tinyllm {
namespace mx = mlx::core;

Type type_of(mx::Dtype dtype) {
  switch (dtype) {
    case mx::float32: return Type::float32;
    case mx::float16: return Type::float16;
    case mx::bfloat16: return Type::bfloat16;
    case mx::uint8: return Type::uint8;
    default: throw std::invalid_argument("dtype: expected float32, float16, bfloat16 or uint8");
  }
}

Mode mode_of(const std::string& name) {
  if (name.empty()) return Mode::dense;
  if (name == "affine") return Mode::affine;
  if (name == "mxfp4") return Mode::mxfp4;
  if (name == "mxfp8") return Mode::mxfp8;
  if (name == "nvfp4") return Mode::nvfp4;
  throw std::invalid_argument("mode: expected affine, mxfp4, mxfp8 or nvfp4, got " + name);
}

Input::Input(const mx::array& array)
    : data(array.data<void>()),
      shape(array.shape().begin(), array.shape().end()),
      strides(array.strides().begin(), array.strides().end()),
      size(array.size()),
      itemsize(array.itemsize()),
      is_contiguous(array.flags().row_contiguous) {}

const void* Input::compact(std::unique_ptr<char[]>& copy) const {
  if (is_contiguous) return data;
  copy.reset(new char[size * itemsize]);
  std::vector<int64_t> index(shape.size(), 0);
  const char* from = static_cast<const char*>(data);
  for (int64_t n = 0; n < size; ++n) {
    std::memcpy(copy.get() + n * itemsize, from, itemsize);
    for (int axis = static_cast<int>(shape.size()) - 1; axis >= 0; --axis) {
      from += strides[axis] * static_cast<int64_t>(itemsize);
      if (++index[axis] < shape[axis]) break;
      from -= strides[axis] * shape[axis] * static_cast<int64_t>(itemsize);
      index[axis] = 0;
    }
  }
  return copy.get();
}

OptionalPhase phase_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "prefill") return Phase::prefill;
  if (*name == "decode") return Phase::decode;
  throw std::invalid_argument("phase: expected prefill, decode or None, got " + *name);
}

Phase phase_of(const Input& x, OptionalPhase stated) {
  if (stated) return *stated;
  const size_t axes = x.shape.size();
  const int64_t rows = axes < 2 ? 1 : x.shape[axes - 2];
  return rows == 1 || (axes < 3 && rows <= 16) ? Phase::decode : Phase::prefill;
}

int64_t decode_queries(OptionalPhase stated) {
  if (!stated) return 1;
  return *stated == Phase::decode ? std::numeric_limits<int64_t>::max() : 0;
}

Rows rows_of(const Input& x, const void* data, Type type, OptionalPhase stated) {
  return {data, x.size / x.shape.back(), phase_of(x, stated), type};
}

bool Input::has_contiguous_rows() const {
  return shape.empty() || shape.back() == 1 || strides.back() == 1;
}

const void* contiguous_data(const Input& input, Copies& copies) {
  return input.compact(copies.emplace_back());
}

}  // namespace tinyllm
