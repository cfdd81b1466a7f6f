#include "layers/recurrent/delta_net.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "check/checks.h"
#include "check/data/recurrent.h"

namespace tinyllm::check {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The state of one sequence in float64, and the results of its tokens.
struct ExactMixer {
  explicit ExactMixer(const Mixer& m)
      : inputs((m.width - 1) * m.channels()),
        state(size_t(m.value_heads) * m.value_dim * m.key_dim) {}

  // Loads the state before the pass.
  void load(const Mixer& m, int slot) {
    if (slot < 0) return;
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = m.conv_state.at(slot * inputs.size() + i);
    for (size_t i = 0; i < state.size(); ++i) state[i] = m.state.at(slot * state.size() + i);
  }

  // Appends the raw inputs of a token. Returns the results of the convolution.
  std::vector<double> convolve(const Mixer& m, int token) {
    const int C = m.channels();
    for (int c = 0; c < C; ++c) inputs.push_back(m.x.at(size_t(token) * C + c));
    std::vector<double> y(C);
    for (int c = 0; c < C; ++c) {
      double sum = 0;
      for (int j = 0; j < m.width; ++j) sum += inputs[j * C + c] * m.taps.at(size_t(j) * C + c);
      y[c] = sum * sigmoid(sum);
    }
    inputs.erase(inputs.begin(), inputs.begin() + C);
    return y;
  }

  // Passes a token with the results `y` of the convolution through the state. Returns Hv Dv numbers.
  std::vector<double> scan(const Mixer& m, int token, const std::vector<double>& y) {
    const int Dk = m.key_dim, Dv = m.value_dim, width = m.key_heads * Dk;
    std::vector<double> o(size_t(m.value_heads) * Dv);
    for (int h = 0; h < m.value_heads; ++h) {
      const int key_head = h / (m.value_heads / m.key_heads);
      const double *q = &y[key_head * Dk], *k = &y[width + key_head * Dk], *v = &y[2 * width + h * Dv];
      double q_squares = 1e-6, k_squares = 1e-6;
      for (int i = 0; i < Dk; ++i) q_squares += q[i] * q[i], k_squares += k[i] * k[i];
      const size_t at = size_t(token) * m.value_heads + h;
      const double time = std::log1p(std::exp(m.a.at(at) + m.dt_bias[h]));
      const double decay = std::exp(-m.rates[h] * time), rate = sigmoid(m.b.at(at));
      for (int row = 0; row < Dv; ++row) {
        double* s = &state[(size_t(h) * Dv + row) * Dk];
        double found = 0;
        for (int i = 0; i < Dk; ++i) s[i] *= decay, found += s[i] * k[i] / std::sqrt(k_squares);
        const double change = (v[row] - found) * rate;
        for (int i = 0; i < Dk; ++i) {
          s[i] += change * k[i] / std::sqrt(k_squares);
          o[h * Dv + row] += s[i] * q[i] / std::sqrt(q_squares * Dk);
        }
      }
    }
    return o;
  }

  std::vector<double> inputs, state;
};

std::vector<double> gated_norm(const Mixer& m, int token, std::vector<double> o) {
  const int Dv = m.value_dim;
  for (int h = 0; h < m.value_heads; ++h) {
    double squares = 0;
    for (int i = 0; i < Dv; ++i) squares += o[h * Dv + i] * o[h * Dv + i];
    for (int i = 0; i < Dv; ++i) {
      const double gate = m.z.at((size_t(token) * m.value_heads + h) * Dv + i);
      o[h * Dv + i] *= m.norm.at(i) / std::sqrt(squares / Dv + kMixerEps) * gate * sigmoid(gate);
    }
  }
  return o;
}

// The results of a pass in float64.
struct ExactPass {
  explicit ExactPass(const Mixer& m)
      : conv_state(m.conv_state.numbers()), state(m.state.numbers()) {
    for (size_t i = 0; i + 1 < m.starts.size(); ++i) {
      ExactMixer mixer(m);
      mixer.load(m, m.loads[i]);
      for (int token = m.starts[i]; token < m.starts[i + 1]; ++token) {
        append(y, gated_norm(m, token, mixer.scan(m, token, mixer.convolve(m, token))));
        if (m.saves[token] < 0) continue;
        std::copy(mixer.inputs.begin(), mixer.inputs.end(),
                  conv_state.begin() + m.saves[token] * mixer.inputs.size());
        std::copy(mixer.state.begin(), mixer.state.end(),
                  state.begin() + m.saves[token] * mixer.state.size());
      }
    }
  }

  static void append(std::vector<double>& to, const std::vector<double>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }

  std::vector<double> y, conv_state, state;
};

// A pass of three sequences: a new one, one that continues in place, and one that branches off the
// state of another slot. Some tokens in the middle are saved.
Mixer pass(Type type, int key_heads, int value_heads, int key_dim, int value_dim, int width) {
  Mixer m(type, key_heads, value_heads, key_dim, value_dim, width, 75, 7);
  m.starts = {0, 37, 38, 75};
  m.loads = {-1, 2, 3};
  m.saves[36] = 0, m.saves[4] = 1, m.saves[37] = 2, m.saves[38] = 4, m.saves[39] = 5, m.saves[74] = 6;
  return m;
}

bool equal(const Array& a, const Array& b) { return a.bytes == b.bytes; }

// Three steps give the bits of the step that has all three.
void check_steps(const KernelTable& kernels, const Mixer& before, const Mixer& mixed) {
  Mixer m = before;
  Array convolved(m.type, size_t(m.tokens) * m.channels());
  MixerTask task = m.task();
  task.conv.y = convolved.bytes.data();
  run_causal_conv(kernels, task.conv);
  const char* q = convolved.bytes.data();
  const int64_t width = int64_t{m.key_heads} * m.key_dim * size_of(m.type);
  task.delta.q = q, task.delta.k = q + width, task.delta.v = q + 2 * width;
  task.delta.q_stride = task.delta.k_stride = task.delta.v_stride = m.channels();
  Array o(m.type, m.z.bytes.size() / size_of(m.type));
  task.delta.o = o.bytes.data();
  run_gated_delta(kernels, task.delta);
  task.norm.x = o.bytes.data();
  kernels.gated_norm_rows(task.norm, 0, int64_t{m.tokens} * m.value_heads);
  expect(equal(m.y, mixed.y) && equal(m.state, mixed.state) && equal(m.conv_state, mixed.conv_state),
         kernels, "the bits of the mixer from its three steps");
}

// A sequence of 37 tokens that is cut into passes of 1, 5 and 31 tokens gives the bits of one pass.
void check_cuts(const KernelTable& kernels, const Mixer& before, const Mixer& whole) {
  Mixer m = before;
  std::fill(m.saves.begin(), m.saves.end(), -1);
  const size_t row = m.y.bytes.size() / m.tokens, slot = m.state.bytes.size() / m.slots;
  bool are_equal = true;
  int first = 38, load = 3;
  for (const int last : {39, 44, 75}) {
    m.starts = {first, last}, m.loads = {load}, m.saves[last - 1] = 6;
    m.compute(kernels);
    m.saves[last - 1] = -1;
    are_equal &= !std::memcmp(&m.y.bytes[first * row], &whole.y.bytes[first * row],
                              (last - first) * row);
    first = last, load = 6;
  }
  are_equal &= !std::memcmp(&m.state.bytes[6 * slot], &whole.state.bytes[6 * slot], slot);
  expect(are_equal, kernels, "the bits of one pass from several passes");
}

void check_mixer(const KernelTable& kernels, Type type, int key_heads, int value_heads, int key_dim,
                 int value_dim, int width) {
  const Mixer before = pass(type, key_heads, value_heads, key_dim, value_dim, width);
  const ExactPass expected(before);
  Mixer m = before;
  m.compute(kernels);
  compare(kernels, "mixer", m.y, expected.y);
  compare(kernels, "state of the mixer", m.state, expected.state, tolerance(type));
  compare(kernels, "state of the convolution", m.conv_state, expected.conv_state);
  check_steps(kernels, before, m);
  check_cuts(kernels, before, m);
}

// Slots and tokens outside of the arrays. A sanitizer sees any access outside of them.
void check_hostile_slots(const KernelTable& kernels, Type type) {
  Mixer m(type, 1, 2, 8, 8, 4, 9, 3);
  const std::vector<int32_t> hostile = {0, 2, 3, -1, -5, 9, INT32_MAX, INT32_MIN, 7};
  const auto any = [&] { return hostile[generator() % hostile.size()]; };
  m.starts.resize(3), m.loads.resize(2);
  for (int round = 0; round < 40; ++round) {
    for (auto* part : {&m.starts, &m.loads, &m.saves}) {
      for (int32_t& number : *part) number = any();
    }
    m.compute(kernels);
  }
}

}  // namespace

void check_recurrent(const KernelTable& kernels, Type type) {
  check_mixer(kernels, type, 2, 2, 128, 128, 4);
  check_mixer(kernels, type, 1, 3, 128, 24, 4);
  check_mixer(kernels, type, 2, 4, 40, 7, 2);
  check_mixer(kernels, type, 1, 1, 5, 130, 3);
  check_hostile_slots(kernels, type);
}

}  // namespace tinyllm::check
