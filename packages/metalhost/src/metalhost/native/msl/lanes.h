// What the lanes of a simdgroup hand each other.
#pragma once
#include "metal_compute"
#include "metal_geometric"
#include "metal_integer"
#include "metal_relational"

namespace metal {

// The value of each lane of the simdgroup, once all of them have handed in theirs. To be read before
// the next ones are handed in.
template <class T>
class lanes {
 public:
  METAL_UNCHECKED lanes(const T& own, const char* operation, Site site)
      : exchange_(metalhost::exchange(&own, sizeof(T), operation, site)),
        operation_(operation),
        site_(site) {
    static_assert(sizeof(T) <= metalhost::SLOT_BYTES);
  }

  METAL_UNCHECKED uint own() const { return exchange_.lane; }
  METAL_UNCHECKED bool active(uint lane) const {
    return lane < metalhost::LANES && (exchange_.active >> lane & 1);
  }
  METAL_UNCHECKED uint first() const { return uint(__builtin_ctz(exchange_.active)); }

  METAL_UNCHECKED T operator[](uint lane) const {
    T value;
    __builtin_memcpy(&value, exchange_.slots + lane * metalhost::SLOT_BYTES, sizeof value);
    return value;
  }
  // The same, of a lane that may be none: the result is then undefined on a GPU.
  METAL_UNCHECKED T from(uint lane) const {
    if (active(lane)) return (*this)[lane];
    metalhost::inactive_lane(operation_, site_);
    return (*this)[own()];
  }

  // The active values of `count` lanes from `begin` on, put together by halves, as hardware does.
  template <class Combine>
  METAL_UNCHECKED T fold(uint begin, uint count, T neutral, Combine combine) const {
    T values[metalhost::LANES];
    for (uint i = 0; i < count; ++i) values[i] = active(begin + i) ? (*this)[begin + i] : neutral;
    for (uint half = count / 2; half; half /= 2) {
      for (uint i = 0; i < half; ++i) values[i] = combine(values[i], values[i + half]);
    }
    return values[0];
  }

 private:
  metalhost::Exchange exchange_;
  const char* operation_;
  Site site_;
};

// What a reduction begins with.
template <class T>
struct neutral {
  static METAL_UNCHECKED T zero() { return T(0); }
  static METAL_UNCHECKED T one() { return T(1); }
  static METAL_UNCHECKED T ones() { return T(~T(0)); }
  static METAL_UNCHECKED T low() {
    if constexpr (is_integral_v<T>) return numeric_limits<T>::min();
    else return T(-INFINITY);
  }
  static METAL_UNCHECKED T high() {
    if constexpr (is_integral_v<T>) return numeric_limits<T>::max();
    else return T(INFINITY);
  }
};
template <class T, int N>
struct neutral<vec<T, N>> {
  using V = vec<T, N>;
  static METAL_UNCHECKED V zero() { return V(neutral<T>::zero()); }
  static METAL_UNCHECKED V one() { return V(neutral<T>::one()); }
  static METAL_UNCHECKED V ones() { return V(neutral<T>::ones()); }
  static METAL_UNCHECKED V low() { return V(neutral<T>::low()); }
  static METAL_UNCHECKED V high() { return V(neutral<T>::high()); }
};

}  // namespace metal
