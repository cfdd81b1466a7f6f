// Causal convolution: y[t] = silu(sum over j of weight[j] * x[t - K + 1 + j]), for each channel. A
// thread computes one channel of one token.
//
// `first` is the first token of the sequence in this pass. The K - 1 inputs before it are in slot
// `slot` of the state, the oldest first, or are zeros if `slot` is negative. If `save` is not
// negative, the last K - 1 inputs up to this token are written to row `save` of `saved`.
template <typename T, int K, typename X, typename W, typename State>
void causal_conv(X x, W weight, State state, device T* y, device T* saved, int channels, int token,
                 int channel, int first, int slot, int save) {
  if (channel >= channels) {
    return;
  }
  T inputs[K];
  float sum = 0;
  for (int j = 0; j < K; ++j) {
    const int source = token - (K - 1) + j;
    const int stored = slot * (K - 1) + source - first + K - 1;
    if (source >= first) {
      inputs[j] = T(x[int64_t(source) * channels + channel]);
    } else {
      inputs[j] = slot < 0 ? T(0) : T(state[int64_t(stored) * channels + channel]);
    }
    sum += float(inputs[j]) * float(weight[channel * K + j]);
  }
  y[int64_t(token) * channels + channel] = T(sum * sigmoid(sum));
  if (save >= 0) {
    for (int j = 0; j < K - 1; ++j) {
      saved[(int64_t(save) * (K - 1) + j) * channels + channel] = inputs[j + 1];
    }
  }
}
