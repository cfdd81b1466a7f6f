// vec<T, N>: vector of two, three or four numbers, with elementwise arithmetic.
#pragma once
#include "../runtime/abi.h"
#include "metal_types"

#define METAL_EACH for (int i = 0; i < N; ++i)

namespace metal {

template <class T, int N>
struct vec;

template <class T>
constexpr int component_count = 1;
template <class T, int N>
constexpr int component_count<vec<T, N>> = N;

// Tags of swizzles. The translation replaces v.zyx by v[swizzle<2, 1, 0>()], or by
// v[swizzled<2, 1, 0>()] if it is assigned to. A vector cannot have a member for every swizzle.
template <int... I>
struct swizzle {};
template <int... I>
struct swizzled {};

template <class T, int... I>
struct swizzle_reference {
  using V = vec<T, sizeof...(I)>;
  T* components;

  METAL_INLINE constexpr operator V() const { return V(components[I]...); }
  METAL_INLINE constexpr void operator=(V v) {
    int k = 0;
    ((components[I] = v.components[k++]), ...);
  }
#define METAL_OPERATOR(op) \
  METAL_INLINE constexpr void operator op##=(V v) { *this = V(*this) op v; }
  METAL_OPERATOR(+)
  METAL_OPERATOR(-)
  METAL_OPERATOR(*)
  METAL_OPERATOR(/)
  METAL_OPERATOR(%)
  METAL_OPERATOR(&)
  METAL_OPERATOR(|)
  METAL_OPERATOR(^)
  METAL_OPERATOR(<<)
  METAL_OPERATOR(>>)
#undef METAL_OPERATOR
};

// Returns the index of a component, and reports an index beyond the end of the vector. The
// sanitizer does not know that a float3 has no fourth component, and checks no array at the end of
// a structure.
template <int N>
METAL_INLINE constexpr size_t checked_index(size_t i) {
#if METALHOST_CHECKED
  if (i >= N) {
    metalhost::vector_index_out_of_bounds();
    return 0;
  }
#endif
  return i;
}

template <class T, int N>
struct named_components;
template <class T>
struct named_components<T, 2> {
  union {
    T components[2];
    struct { T x, y; };
    struct { T r, g; };
  };
};
template <class T>
struct named_components<T, 3> {
  union {
    T components[4];  // a float3 has the size of a float4
    struct { T x, y, z; };
    struct { T r, g, b; };
  };
};
template <class T>
struct named_components<T, 4> {
  union {
    T components[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
  };
};

template <class T, int N>
struct alignas(sizeof(T) * (N == 3 ? 4 : N)) vec : named_components<T, N> {
  using named_components<T, N>::components;

  vec() = default;

  template <class A, class = enable_if_t<is_arithmetic_v<A>>>
  METAL_INLINE explicit(!std::is_convertible_v<A, T>) constexpr vec(A every) {
    METAL_EACH components[i] = T(every);
  }
  template <class U, class = enable_if_t<!is_same_v<T, U>>>
  METAL_INLINE explicit constexpr vec(const vec<U, N>& other) {
    METAL_EACH components[i] = T(other.components[i]);
  }
  // Concatenates scalars and vectors, as in float4(v.xy, 0, 1).
  template <class A, class B, class... C>
  METAL_INLINE constexpr vec(A a, B b, C... c) {
    static_assert(component_count<A> + component_count<B> + (component_count<C> + ... + 0) == N,
                  "vector constructor: wrong number of components");
    int at = 0;
    append(at, a);
    append(at, b);
    (append(at, c), ...);
  }

  METAL_INLINE constexpr T& operator[](size_t i) { return components[checked_index<N>(i)]; }
  METAL_INLINE constexpr const T& operator[](size_t i) const {
    return components[checked_index<N>(i)];
  }
  template <int... I>
  METAL_INLINE constexpr vec<T, sizeof...(I)> operator[](swizzle<I...>) const {
    return vec<T, sizeof...(I)>(components[I]...);
  }
  template <int... I>
  METAL_INLINE constexpr swizzle_reference<T, I...> operator[](swizzled<I...>) {
    return {components};
  }

  // The operators are friends, so that v * 2 converts the 2 to a vector.
#define METAL_OPERATOR(op)                                              \
  METAL_INLINE friend constexpr vec operator op(vec a, vec b) {         \
    vec r;                                                              \
    METAL_EACH r.components[i] = T(a.components[i] op b.components[i]); \
    return r;                                                           \
  }                                                                     \
  METAL_INLINE friend constexpr vec& operator op##=(vec& a, vec b) { return a = a op b; }
  METAL_OPERATOR(+)
  METAL_OPERATOR(-)
  METAL_OPERATOR(*)
  METAL_OPERATOR(/)
  METAL_OPERATOR(%)
  METAL_OPERATOR(&)
  METAL_OPERATOR(|)
  METAL_OPERATOR(^)
  METAL_OPERATOR(<<)
  METAL_OPERATOR(>>)
#undef METAL_OPERATOR
#define METAL_OPERATOR(op)                                                \
  METAL_INLINE friend constexpr vec<bool, N> operator op(vec a, vec b) {  \
    vec<bool, N> r;                                                       \
    METAL_EACH r.components[i] = bool(a.components[i] op b.components[i]); \
    return r;                                                             \
  }
  METAL_OPERATOR(==)
  METAL_OPERATOR(!=)
  METAL_OPERATOR(<)
  METAL_OPERATOR(<=)
  METAL_OPERATOR(>)
  METAL_OPERATOR(>=)
  METAL_OPERATOR(&&)
  METAL_OPERATOR(||)
#undef METAL_OPERATOR
  METAL_INLINE friend constexpr vec operator-(vec a) {
    METAL_EACH a.components[i] = T(-a.components[i]);
    return a;
  }
  METAL_INLINE friend constexpr vec operator~(vec a) {
    METAL_EACH a.components[i] = T(~a.components[i]);
    return a;
  }
  METAL_INLINE friend constexpr vec<bool, N> operator!(vec a) {
    vec<bool, N> r;
    METAL_EACH r.components[i] = !a.components[i];
    return r;
  }

 private:
  template <class A>
  METAL_INLINE constexpr void append(int& at, const A& a) {
    if constexpr (component_count<A> == 1) {
      components[at++] = T(a);
    } else {
      for (int i = 0; i < component_count<A>; ++i) components[at++] = T(a.components[i]);
    }
  }
};

// Vector without padding and with the alignment of one number.
template <class T, int N>
struct packed_vec {
  T components[N];

  packed_vec() = default;
  METAL_INLINE constexpr packed_vec(vec<T, N> v) { METAL_EACH components[i] = v.components[i]; }
  METAL_INLINE constexpr operator vec<T, N>() const {
    vec<T, N> v;
    METAL_EACH v.components[i] = components[i];
    return v;
  }
  METAL_INLINE constexpr T& operator[](size_t i) { return components[checked_index<N>(i)]; }
  METAL_INLINE constexpr const T& operator[](size_t i) const {
    return components[checked_index<N>(i)];
  }
};

}  // namespace metal

#define METAL_VECTORS(T)        \
  typedef metal::vec<T, 2> T##2; \
  typedef metal::vec<T, 3> T##3; \
  typedef metal::vec<T, 4> T##4;
#define METAL_PACKED_VECTORS(T)                \
  METAL_VECTORS(T)                             \
  typedef metal::packed_vec<T, 2> packed_##T##2; \
  typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4;
METAL_VECTORS(bool)
METAL_VECTORS(long)
METAL_VECTORS(ulong)
METAL_PACKED_VECTORS(char)
METAL_PACKED_VECTORS(uchar)
METAL_PACKED_VECTORS(short)
METAL_PACKED_VECTORS(ushort)
METAL_PACKED_VECTORS(int)
METAL_PACKED_VECTORS(uint)
METAL_PACKED_VECTORS(half)
METAL_PACKED_VECTORS(float)
METAL_PACKED_VECTORS(bfloat)

// Reinterprets the bits of a value as another type of the same size.
template <class To, class From>
METAL_INLINE constexpr To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: the sizes differ");
  return __builtin_bit_cast(To, from);
}
