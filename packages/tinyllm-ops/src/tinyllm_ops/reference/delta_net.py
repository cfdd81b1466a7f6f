"""The ops of gated DeltaNet: a short convolution, the gated delta rule, and a gated norm."""

import mlx.core as mx
from jaxtyping import Float, Float32

from tinyllm_ops.recurrent_checks import check_causal_conv, check_gated_delta, check_gated_rms_norm
from tinyllm_ops.reference.rowwise import sigmoid, silu
from tinyllm_ops.state_table import NO_STATE, StateTable

_NORM_EPS = 1e-6  # of the norm of queries and keys, as in the training of the models


def causal_conv(
    x: Float[mx.array, "T C"],
    weight: Float[mx.array, "C K"],
    slots: Float[mx.array, "P K-1 C"],
    state_table: StateTable,
) -> tuple[Float[mx.array, "T C"], Float[mx.array, "P K-1 C"]]:
    """silu(sum over j of weight[:, j] * x[t - (K-1) + j]), a convolution along each sequence.

    Each of C channels has K weights of its own. The last weight belongs to the token itself. The
    state of a sequence is its last K-1 inputs, the oldest first. Tokens before the beginning of a
    text are zeros. Products and sums are float32, in the order j = 0 to K-1.

    Args:
        x: the inputs of all sequences.
        weight: the weights of each channel.
        slots: the states before the pass, in P slots. The argument is not changed.
        state_table: the tokens and slots of each sequence.

    Returns:
        The output of each token, and the slots with the saved states.

    Raises:
        ValueError: if shapes or dtypes do not fit, or the table was made for other tokens or slots.
    """
    check_causal_conv(x, weight, slots, state_table)
    taps = weight.astype(mx.float32).T  # K C
    before = weight.shape[1] - 1
    outputs = [mx.zeros_like(x[:0])]
    saved: dict[int, mx.array] = {}
    for load, first, stop in state_table.sequences:
        start = mx.zeros(slots.shape[1:], x.dtype) if load == NO_STATE else slots[load]
        inputs = mx.concatenate([start, x[first:stop]])  # K-1 earlier tokens, then the new tokens
        wide, length = inputs.astype(mx.float32), stop - first
        y = taps[0] * wide[:length]
        for j in range(1, before + 1):
            y = y + taps[j] * wide[j : j + length]
        outputs.append(silu(y).astype(x.dtype))
        for token in range(first, stop):
            if state_table.save_slots[token] != NO_STATE:
                end = token - first + 1
                saved[state_table.save_slots[token]] = inputs[end : end + before]
    return mx.concatenate(outputs), _with_saved(slots, saved)


def gated_delta(
    q: Float[mx.array, "T Hk Dk"],
    k: Float[mx.array, "T Hk Dk"],
    v: Float[mx.array, "T Hv Dv"],
    a: Float[mx.array, "T Hv"],
    b: Float[mx.array, "T Hv"],
    a_log: Float32[mx.array, "Hv"],
    dt_bias: Float[mx.array, "Hv"],
    slots: Float32[mx.array, "P Hv Dv Dk"],
    state_table: StateTable,
) -> tuple[Float[mx.array, "T Hv Dv"], Float32[mx.array, "P Hv Dv Dk"]]:
    """Read and update a matrix S for each head by the gated delta rule (Yang et al. 2024).

    S maps keys to values. For each token, in order:

        S = g S                           # g in 0..1: forget a part of everything
        d = beta (v - S k)                # the error of the value that S returns for the key
        S = S + d k^T                     # beta = 1: S now returns v for k
        o = S q                           # read

    with q and k divided by their lengths, q also by sqrt(Dk), and

        g = exp(-exp(a_log) softplus(a + dt_bias)),   beta = sigmoid(b).

    Without g this is DeltaNet (Schlag et al. 2021). Key head h serves the Hv / Hk value heads from
    h * Hv / Hk on. All numbers are float32. The tokens of a sequence are computed one after the
    other, so that a result does not depend on the chunks in which the tokens arrive.

    Args:
        q: queries of all sequences.
        k: keys.
        v: values.
        a: the input of the decay g.
        b: the input of beta.
        a_log: logarithm of the decay rate of each head.
        dt_bias: a number that is added to `a`.
        slots: the states before the pass, in P slots. The argument is not changed.
        state_table: the tokens and slots of each sequence.

    Returns:
        The output of each token in the dtype of v, and the slots with the saved states.

    Raises:
        ValueError: if shapes or dtypes do not fit, Hv is no multiple of Hk, or the table was made
            for other tokens or slots.
    """
    check_gated_delta(q, k, v, a, b, a_log, dt_bias, slots, state_table)
    heads_per_key = v.shape[1] // q.shape[1]
    queries = _unit_length(q) * q.shape[-1] ** -0.5
    queries, keys = (mx.repeat(x, heads_per_key, axis=1) for x in (queries, _unit_length(k)))
    values = v.astype(mx.float32)
    time_step = softplus(a.astype(mx.float32) + dt_bias.astype(mx.float32))
    decay = mx.exp(-mx.exp(a_log) * time_step)  # T Hv
    beta = sigmoid(b.astype(mx.float32))  # T Hv

    outputs = []
    saved: dict[int, mx.array] = {}
    for load, first, stop in state_table.sequences:
        s = mx.zeros(slots.shape[1:], mx.float32) if load == NO_STATE else slots[load]
        for token in range(first, stop):
            key, query = keys[token, :, None], queries[token, :, None]  # Hv 1 Dk
            s = s * decay[token, :, None, None]
            error = values[token] - (s * key).sum(-1)  # Hv Dv
            s = s + (error * beta[token, :, None])[..., None] * key
            outputs.append((s * query).sum(-1))
            if state_table.save_slots[token] != NO_STATE:
                saved[state_table.save_slots[token]] = s
    o = mx.stack(outputs).astype(v.dtype) if outputs else mx.zeros_like(v)
    return o, _with_saved(slots, saved)


def gated_rms_norm(
    x: Float[mx.array, "*batch D"],
    gate: Float[mx.array, "*batch D"],
    weight: Float[mx.array, "D"],
    eps: float = 1e-6,
) -> Float[mx.array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * weight * silu(gate), computed in float32 and rounded once.

    Raises:
        ValueError: if shapes or dtypes differ, or eps is negative.
    """
    check_gated_rms_norm(x, gate, weight, eps)
    wide = x.astype(mx.float32)
    mean_square = mx.mean(wide * wide, axis=-1, keepdims=True)
    normed = wide * mx.rsqrt(mean_square + eps) * weight.astype(mx.float32)
    return (normed * silu(gate.astype(mx.float32))).astype(x.dtype)


def softplus(x: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
    """log(1 + exp(x)), computed as max(x, 0) + log(1 + exp(-abs(x))), which never overflows."""
    return mx.maximum(x, 0) + mx.log1p(mx.exp(-mx.abs(x)))


def _unit_length(x: Float[mx.array, "T H D"]) -> Float32[mx.array, "T H D"]:
    """x / sqrt(sum(x^2) + eps) over the last axis, in float32."""
    wide = x.astype(mx.float32)
    return wide * mx.rsqrt((wide * wide).sum(-1, keepdims=True) + _NORM_EPS)


def _with_saved(slots: mx.array, saved: dict[int, mx.array]) -> mx.array:
    """Return the slots with the states in `saved`, a dict by slot."""
    if not saved or slots.size == 0:  # MLX crashes on writes of rows without numbers
        return slots
    slots = slots[...]  # a second array object: the update must not change the caller's array
    slots[mx.array(list(saved), dtype=mx.int32)] = mx.stack(list(saved.values()))
    return slots
