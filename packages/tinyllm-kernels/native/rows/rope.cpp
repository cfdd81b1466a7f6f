// Rotary position embedding of heads.
#include <cmath>
#include <utility>

#include "rows/rms_norm.h"
#include "rows/tasks.h"

namespace tinyllm::TINYLLM_ISA {
namespace {

// The features of a head as they are.
template <typename T>
struct PlainHead {
  const T* x;

  Floats vector(int64_t i) const { return load_as_floats(x + i); }
  float operator[](int64_t i) const { return to_float(x[i]); }
};

// The features of a head, normalized as they are read.
template <typename T>
struct NormalizedHead {
  Normalized<T> features;

  Floats vector(int64_t i) const { return rounded_to<T>(features.vector(i)); }
  float operator[](int64_t i) const { return to_float(from_float<T>(features[i])); }
};

// Rotates the feature pairs (i, i + pairs) of one head.
template <typename T, typename Features>
void rotate_halves(const Features& x, T* y, const float* cosines, const float* sines,
                   int64_t pairs) {
  int64_t i = 0;
  for (; i + W <= pairs; i += W) {
    Floats a = x.vector(i), b = x.vector(pairs + i);
    Floats cosine = load(cosines + i), sine = load(sines + i);
    store_floats(y + i, a * cosine - b * sine);
    store_floats(y + pairs + i, b * cosine + a * sine);
  }
  for (; i < pairs; ++i) {
    float a = x[i], b = x[pairs + i];
    y[i] = from_float<T>(a * cosines[i] - b * sines[i]);
    y[pairs + i] = from_float<T>(b * cosines[i] + a * sines[i]);
  }
}

// Rotates the feature pairs (2i, 2i + 1) of one head.
template <typename T, typename Features>
void rotate_neighbors(const Features& x, T* y, const float* cosines, const float* sines,
                      int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = from_float<T>(a * cosines[i] - b * sines[i]);
    y[2 * i + 1] = from_float<T>(b * cosines[i] + a * sines[i]);
  }
}

// Rotates the first features of one head and copies the others. `y` may be the memory of x.
template <typename T, typename Features>
void rotate_head(const RopeTask& t, const Features& x, T* y, const float* table) {
  const float *cosines = table, *sines = table + t.pairs;
  if (t.traditional) {
    rotate_neighbors(x, y, cosines, sines, t.pairs);
  } else {
    rotate_halves(x, y, cosines, sines, t.pairs);
  }
  for (int64_t i = 2 * t.pairs; i < t.dim; ++i) y[i] = from_float<T>(x[i]);
}

// Prefetches some numbers.
template <typename T>
void prefetch(const T* from, int64_t count) {
  const char* line = reinterpret_cast<const char*>(from);
  for (const char* end = line + count * sizeof(T); line < end; line += 64) __builtin_prefetch(line);
}

}  // namespace

// Positions `first` to `last`.
void rope_table_rows(const RopeTableTask& t, int64_t first, int64_t last) {
  for (int64_t n = first; n < last; ++n) {
    float *cosines = t.table + 2 * n * t.pairs, *sines = cosines + t.pairs;
    const float position = static_cast<float>(t.positions[n]);
    for (int64_t i = 0; i < t.pairs; ++i) {
      const float angle = position * t.frequencies[i];
      cosines[i] = std::cos(angle) * t.magnitude;
      sines[i] = std::sin(angle) * t.magnitude;
    }
  }
}

// Tokens `first` to `last` of B L, in row-major order. The scale of RMSNorm is computed a token
// ahead, as in `rms_norm_rows`.
void rope_tokens(const RopeTask& t, int64_t first, int64_t last) {
  with_type(t.type, [&]<typename T>(T*) {
    const auto* weight = static_cast<const T*>(t.norm_weight);
    for (int64_t head = 0; head < t.heads; ++head) {
      const auto offset = [&](int64_t n, const int64_t(&strides)[3]) {
        return n / t.length * strides[0] + n % t.length * strides[1] + head * strides[2];
      };
      const auto features = [&](int64_t n) {
        return static_cast<const T*>(t.x) + offset(n, t.strides);
      };
      const auto scale_of = [&](int64_t n) {
        return weight && n < last ? inverse_rms(features(n), t.dim, t.eps) : 0;
      };
      float next_scale = scale_of(first);
      for (int64_t n = first; n < last; ++n) {
        const int64_t token = n % t.length;
        const float* table = t.table + 2 * t.pairs * (t.shares_positions ? token : n);
        const T* x = features(n);
        T* y = static_cast<T*>(t.y) + offset(n, t.y_strides);
        // Tokens are some KB apart, which no hardware prefetcher follows.
        constexpr int64_t kTokensAhead = 3;
        if (token + kTokensAhead < t.length) prefetch(x + kTokensAhead * t.strides[1], t.dim);
        const float scale = std::exchange(next_scale, scale_of(n + 1));
        if (weight) {
          rotate_head(t, NormalizedHead<T>{{x, weight, scale}}, y, table);
        } else {
          rotate_head(t, PlainHead<T>{x}, y, table);
        }
      }
    }
  });
}

}  // namespace tinyllm::TINYLLM_ISA
