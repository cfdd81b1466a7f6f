"""Every op in float64 NumPy, written from its formula: slow, simple, and without code of the ops.

The oracle computes in another way than the ops, so that the two do not share a mistake. The oracle
repeats keys where an op broadcasts keys. It rotates complex numbers instead of pairs of features,
and packs codes into one long integer instead of shifting bits in parallel. Functions accept and
return NumPy arrays, and do not use MLX.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tinyllm_ops.rotary_frequencies import Yarn

Array = NDArray[np.float64]
Ids = NDArray[np.integer]
Words = NDArray[np.uint32]


def linear(x: Array, w: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
    """y[o] = sum over i of x[i] w[o, i], + bias[o] + residual[o]."""
    y: Array = np.einsum("...i,oi->...o", x, w)
    for term in (bias, residual):
        y = y if term is None else y + term
    return y


def expert_linear(x: Array, w: Array, experts: Ids) -> Array:
    """y[..., o] = sum over i of x[..., i] w[experts[...], o, i]."""
    y: Array = np.einsum("...i,...oi->...o", x, np.take(w, experts, axis=0))
    return y


def embedding(ids: Ids, w: Array) -> Array:
    """w[id] for each id."""
    rows: Array = np.take(w, ids, axis=0)
    return rows


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum exp(x) after subtracting the maximum; zeros for a row of only -inf."""
    top = x.max(axis=axis, keepdims=True, initial=-np.inf)
    unseen = np.isneginf(top)
    weights = np.exp(x - np.where(unseen, 0.0, top))
    total = weights.sum(axis=axis, keepdims=True)
    share: Array = weights / np.where(unseen, 1.0, total)
    return share


def log_probability(x: Array, ids: Ids) -> Array:
    """log softmax(x)[id] for each id."""
    below = x - x.max(axis=-1, keepdims=True)
    total = np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return np.asarray(np.take_along_axis(below, ids, axis=-1) - total)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), as exp(x) / (1 + exp(x)) below 0 and (1 + tanh(x / 2)) / 2 above."""
    below = np.exp(np.minimum(x, 0.0))
    y: Array = np.where(x < 0, below / (1 + below), (1 + np.tanh(np.maximum(x, 0) / 2)) / 2)
    return y


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return np.asarray(x * sigmoid(x))


def swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) up."""
    return np.asarray(silu(gate) * up)


def rms_norm(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    """weight * x / sqrt(mean(x^2) + eps)."""
    y: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight
    return y


def gated_rms_norm(x: Array, gate: Array, weight: Array, eps: float = 1e-6) -> Array:
    """weight * x / sqrt(mean(x^2) + eps) * silu(gate)."""
    return np.asarray(rms_norm(x, weight, eps) * silu(gate))


def causal_conv(x: Array, weight: Array, before: Array) -> tuple[Array, Array]:
    """Compute y[t, c] = silu(sum over j of weight[c, j] z[t + j, c]), with z = before ++ x.

    Args:
        x: the inputs of one sequence, `L C`.
        weight: `C K`.
        before: the K-1 inputs before x, `K-1 C`.

    Returns:
        y, and the K-1 inputs before each prefix ends: entry n is the state after n tokens,
        `L+1 K-1 C`.
    """
    z = np.concatenate([before, x])
    windows = np.lib.stride_tricks.sliding_window_view(z, weight.shape[1], axis=0)  # L C K
    after = np.stack([z[n : n + len(before)] for n in range(len(x) + 1)])
    return silu(np.einsum("lck,ck->lc", windows, weight)), after


def gated_delta(
    q: Array,
    k: Array,
    v: Array,
    a: Array,
    b: Array,
    a_log: Array,
    dt_bias: Array,
    before: Array,
) -> tuple[Array, Array]:
    """S_t = g_t S_(t-1) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T and o_t = S_t q_t.

    This is the form of the recurrence in Yang et al. 2024. It multiplies by the matrix
    I - beta k k^T, where the op computes the error of the value that S returns.

    Args:
        q: the queries of one sequence, `L Hk Dk`.
        k: the keys, `L Hk Dk`.
        v: the values, `L Hv Dv`.
        a: `L Hv`; g = exp(-exp(a_log) log(1 + exp(a + dt_bias))).
        b: `L Hv`; beta = sigmoid(b).
        a_log: `Hv`.
        dt_bias: `Hv`.
        before: the matrices before the first token, `Hv Dv Dk`.

    Returns:
        The outputs `L Hv Dv`, and the matrices after n tokens for each n, `L+1 Hv Dv Dk`.
    """
    heads_per_key = v.shape[1] // q.shape[1]
    q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    g = np.exp(-np.exp(a_log) * np.logaddexp(0.0, a + dt_bias))
    beta = sigmoid(b)
    out, after = np.zeros(v.shape), np.zeros((len(v) + 1, *before.shape))
    after[0] = before
    for t, h in np.ndindex(v.shape[:2]):
        query, key = q[t, h // heads_per_key], k[t, h // heads_per_key]
        forget = np.eye(len(key)) - beta[t, h] * np.outer(key, key)
        s = g[t, h] * after[t, h] @ forget + beta[t, h] * np.outer(v[t, h], key)
        after[t + 1, h], out[t, h] = s, s @ query / math.sqrt(len(query))
    return out, after


def yarn(dim: int, base: float, scaling: Yarn) -> tuple[Array, float]:
    """Return the frequencies of the dim/2 pairs, and the factor of all rotated numbers.

    A pair makes r = context / wavelength rotations in the original context (Peng et al. 2023). The
    function solves for the pair with r = beta_fast and the pair with r = beta_slow. They are
    fractions, rounded outwards if `scaling.truncate`. Pairs up to the first keep their frequency,
    pairs from the second on have it divided by `scaling.factor`, and between them the frequencies
    are interpolated linearly.
    """
    pair = np.arange(dim // 2)
    frequency = base ** (-2.0 * pair / dim)
    context = scaling.original_max_position_embeddings
    # r(pair) = context base^(-2 pair / dim) / 2 pi, so log r is linear in the pair.
    ends = [
        dim / 2 * (np.log(context) - np.log(2 * np.pi * beta)) / np.log(base)
        for beta in (scaling.beta_fast, scaling.beta_slow)
    ]
    if scaling.truncate:
        ends = [np.floor(ends[0]), np.ceil(ends[1])]
    # The limit dim - 1 and the 0.001 against a division by 0 are those of the published YaRN code.
    low, high = max(ends[0], 0), min(ends[1], dim - 1)
    gamma = 1 - np.clip((pair - low) / (high - low if high != low else 0.001), 0, 1)
    stretched = gamma * frequency + (1 - gamma) * frequency / scaling.factor
    magnitude = scaling.attention_factor
    return stretched, 1 + 0.1 * np.log(scaling.factor) if magnitude is None else magnitude


def rope(
    x: Array,
    positions: Ids,
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
    dims: int | None = None,
) -> Array:
    """Multiply each pair, as a complex number a + ib, by exp(i position base^(-pair / (D/2))).

    With `scaling` the frequencies are those of `yarn`, and the pairs are multiplied by its factor.

    Args:
        x: `B L H D`.
        positions: the position of each token, of a shape that broadcasts to `B L`.
        base: see `tinyllm_ops.rope`.
        traditional: True to pair features (0, 1), (2, 3), ...; False to pair i with i + D/2.
        scaling: settings of `yarn`, or None.
        dims: D of the formula, if only the first `dims` features of x are rotated.
    """
    if dims is not None:
        part = rope(x[..., :dims], positions, base, traditional, scaling)
        return np.concatenate([part, x[..., dims:]], axis=-1)
    pairs = (x.shape[-1] // 2, 2) if traditional else (2, x.shape[-1] // 2)
    split = x.reshape(*x.shape[:-1], *pairs)
    if not traditional:
        split = np.swapaxes(split, -1, -2)
    frequency = np.array([base ** (-i / (x.shape[-1] / 2)) for i in range(x.shape[-1] // 2)])
    magnitude = 1.0
    if scaling is not None:
        frequency, magnitude = yarn(x.shape[-1], base, scaling)
    angle = np.broadcast_to(positions, x.shape[:2])[:, :, None, None] * frequency
    turned = (split[..., 0] + 1j * split[..., 1]) * magnitude * np.exp(1j * angle)
    out = np.stack([turned.real, turned.imag], axis=-1 if traditional else -2)
    return out.reshape(x.shape)


def causal_mask(length: int, keys: int) -> Array:
    """0 if j <= i + (keys - length) for query i and key j, otherwise -inf, entry by entry."""
    mask = np.zeros((length, keys))
    for i in range(length):
        for j in range(keys):
            if j > i + (keys - length):
                mask[i, j] = -np.inf
    return mask


def attention_simple(
    q: Array, k: Array, v: Array, scale: float | None = None, mask: Array | None = None
) -> Array:
    """softmax(q k^T scale + mask) v, over `*batch tokens D`."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = np.einsum("...ld,...sd->...ls", q, k) * scale
    if mask is not None:
        scores = scores + mask
    out: Array = np.einsum("...ls,...sd->...ld", softmax(scores), v)
    return out


def attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    mask: Array | Literal["causal"] | None = None,
) -> Array:
    """Attention in which query head h reads key/value head h // (H / Hkv).

    The shapes are q `*batch H L D`, k and v `*batch Hkv S D`. The mask is "causal", or additive and
    broadcast to `H L S`.
    """
    group = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)
    added = causal_mask(q.shape[-2], k.shape[-2]) if isinstance(mask, str) else mask
    return attention_simple(q, k, v, scale, added)


def paged_attention(
    q: Array,
    k: Array,
    v: Array,
    block_tables: Sequence[Sequence[int]] | Ids,
    cu_seqlens_q: Sequence[int] | Ids,
    seq_lens: Sequence[int] | Ids,
    scale: float | None = None,
    window: int | None = None,
) -> Array:
    """Compute attention token by token, and look up each visible key on its own.

    Args:
        q: `T H D`.
        k: `P Hkv page D`.
        v: `P Hkv page D`.
        block_tables: see `tinyllm_ops.PageTable`.
        cu_seqlens_q: see `tinyllm_ops.PageTable`.
        seq_lens: see `tinyllm_ops.PageTable`.
        scale: 1/sqrt(D) unless given.
        window: number of most recent keys that a token sees, its own included; None for all.
    """
    out = np.zeros_like(q)
    page = k.shape[2]
    for r, length in enumerate(seq_lens):
        first, end = cu_seqlens_q[r], cu_seqlens_q[r + 1]
        for t in range(first, end):
            last = length - (end - t)  # position of the token, and of the last key it sees
            oldest = 0 if window is None else max(0, last - window + 1)
            seen = [(block_tables[r][j // page], j % page) for j in range(oldest, last + 1)]
            keys, values = (np.stack([x[p, :, at] for p, at in seen], axis=1) for x in (k, v))
            out[t] = attention(q[t][:, None], keys, values, scale)[:, 0]
    return out


def pack(codes: NDArray[np.integer], bits: int) -> Words:
    """Write each row as one integer, the sum of codes[i] << (i * bits), in little-endian bytes.

    The number of bits in a row must be a multiple of 32. A row of the result has a word for each 32
    bits.
    """
    rows = codes.reshape(math.prod(codes.shape[:-1]), codes.shape[-1])
    size = codes.shape[-1] * bits // 8
    streams = [sum(int(c) << (i * bits) for i, c in enumerate(row)) for row in rows]
    buffer = b"".join(stream.to_bytes(size, "little") for stream in streams)
    return np.frombuffer(buffer, dtype="<u4").reshape(*codes.shape[:-1], size // 4)


def unpack(packed: Words, bits: int) -> NDArray[np.int64]:
    """Undo `pack`."""
    octets = np.ascontiguousarray(packed, "<u4").view(np.uint8)
    stream = np.unpackbits(octets, axis=-1, bitorder="little")
    groups = stream.reshape(*packed.shape[:-1], packed.shape[-1] * 32 // bits, bits)
    codes: NDArray[np.int64] = groups.astype(np.int64) @ (1 << np.arange(bits))
    return codes


def minifloat(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """Decode one code of a sign bit, an exponent and a mantissa, such as E2M1 or E4M3."""
    bias = 2 ** (exponent_bits - 1) - 1
    mantissa = code % 2**mantissa_bits / 2**mantissa_bits
    exponent = (code >> mantissa_bits) % 2**exponent_bits
    sign = -1.0 if code >> (mantissa_bits + exponent_bits) else 1.0
    if (exponent_bits, mantissa_bits) == (4, 3) and code % 128 == 127:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias)
    return sign * math.ldexp(1 + mantissa, exponent - bias)


def dequantize(
    packed: Words,
    scales: NDArray[np.float64] | NDArray[np.uint8],
    biases: Array | None,
    group_size: int,
    bits: int,
    mode: str,
) -> Array:
    """Return scale * code + bias in affine mode, scale * minifloat(code) in the float modes.

    A scale of mxfp4 and mxfp8 is 2^(byte - 127). A scale of nvfp4 is an E4M3 number. Scales and
    biases have an entry on the last axis for each group of `group_size` codes.
    """
    codes = unpack(packed, bits)
    if mode == "affine":
        number = codes.astype(np.float64)
        scale = np.asarray(scales, dtype=np.float64)
    else:
        table = [minifloat(c, *((4, 3) if bits == 8 else (2, 1))) for c in range(2**bits)]
        number = np.array(table)[codes]
        nvidia = mode == "nvfp4"
        decode = [minifloat(b, 4, 3) if nvidia else math.ldexp(1, b - 127) for b in range(256)]
        scale = np.array(decode)[scales.astype(np.int64)]
    w: Array = np.repeat(scale, group_size, axis=-1) * number
    return w if biases is None else w + np.repeat(biases, group_size, axis=-1)
