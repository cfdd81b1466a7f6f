"""Random layers of every Qwen family, dense or quantized, over any OpSet."""

from collections.abc import Callable
from typing import Literal, get_args

import mlx.core as mx
from tinyllm_ops import REFERENCE, OpSet, QuantizationMode, QuantizedTensor, Weight, quantize
from tinyllm_ops.testing import normal

from tinyllm_layers.attention import Biases, GroupedQueryAttention
from tinyllm_layers.cache.paged import PagedCache
from tinyllm_layers.communicator import SINGLE, Communicator
from tinyllm_layers.decoder import DecoderLayer
from tinyllm_layers.gated_attention import GatedAttention
from tinyllm_layers.mlp import MLP
from tinyllm_layers.moe import MoE
from tinyllm_layers.norm import RMSNorm
from tinyllm_layers.rope import RoPE

Family = Literal["qwen2", "qwen3", "qwen3_moe"]
"""The kind of a layer. "qwen2" has biases of q, k and v, "qwen3" has norms of q and k. "qwen3_moe"
has these norms and a mixture of experts."""

FAMILIES: tuple[Family, ...] = get_args(Family)

Pack = Callable[[mx.array], Weight]
"""A function that turns a dense matrix into a weight, dense or quantized."""


def dense(w: mx.array) -> Weight:
    """Return a matrix unchanged: the `Pack` of dense weights."""
    return w


def packed(bits: int | None, group_size: int = 32, mode: QuantizationMode = "affine") -> Pack:
    """Return a function that quantizes a matrix, or leaves it dense if `bits` is None."""
    return dense if bits is None else lambda w: quantize(w, group_size, bits, mode)


def random_norm(
    dim: int, dtype: mx.Dtype = mx.float32, *, seed: int, ops: OpSet = REFERENCE
) -> RMSNorm:
    """Make a norm with weights around 1, like the weights of trained norms."""
    return RMSNorm(dim, norm_weight(dim, dtype, seed), 1e-6, ops=ops)


def random_attention(
    hidden_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    *,
    biased: str = "",
    normed: bool = False,
    dtype: mx.Dtype = mx.float32,
    pack: Pack = dense,
    seed: int = 0,
    rope: RoPE | None = None,
    communicator: Communicator = SINGLE,
    ops: OpSet = REFERENCE,
) -> GroupedQueryAttention:
    """Make an attention layer.

    Args:
        hidden_size: E.
        num_heads: H.
        num_kv_heads: Hkv.
        head_dim: D.
        biased: the letters of the projections with a bias, such as "qkv".
        normed: True to normalize queries and keys.
        dtype: the dtype of all numbers.
        pack: the function applied to the weights of the projections; see `packed`.
        seed: the seed of all numbers.
        rope: the rotation. Unless given, it has base 1e6 and 1,000 positions.
        communicator: the processes that share the layer.
        ops: the implementation of the maths.
    """
    width, kv_width = num_heads * head_dim, num_kv_heads * head_dim
    shapes = {
        "q": (width, hidden_size),
        "k": (kv_width, hidden_size),
        "v": (kv_width, hidden_size),
        "o": (hidden_size, width),
    }
    wq, wk, wv, wo = (
        pack(matrix(shape, dtype, 100 * seed + i)) for i, shape in enumerate(shapes.values())
    )
    biases = {
        name: normal((rows,), dtype, seed=100 * seed + 10 + i)
        for i, (name, (rows, _)) in enumerate(shapes.items())
        if name in biased
    }
    return GroupedQueryAttention(
        hidden_size,
        num_heads,
        num_kv_heads,
        head_dim,
        wq,
        wk,
        wv,
        wo,
        rope=RoPE(head_dim, 1000, 1e6, ops=ops) if rope is None else rope,
        biases=Biases(**biases),
        q_norm=norm_weight(head_dim, dtype, 100 * seed + 20) if normed else None,
        k_norm=norm_weight(head_dim, dtype, 100 * seed + 21) if normed else None,
        communicator=communicator,
        ops=ops,
    )


def random_mlp(
    dim: int = 64,
    hidden_dim: int = 96,
    *,
    dtype: mx.Dtype = mx.float32,
    pack: Pack = dense,
    seed: int = 0,
    communicator: Communicator = SINGLE,
    ops: OpSet = REFERENCE,
) -> MLP:
    """Make an MLP with E = dim and F = hidden_dim. `pack` is applied to its three weights."""
    gate, up = (pack(matrix((hidden_dim, dim), dtype, 100 * seed + number)) for number in (30, 31))
    down = pack(matrix((dim, hidden_dim), dtype, 100 * seed + 32))
    return MLP(dim, hidden_dim, gate, up, down, communicator=communicator, ops=ops)


def random_moe(
    dim: int = 64,
    hidden_dim: int = 96,
    num_experts: int = 6,
    num_experts_per_tok: int = 2,
    *,
    norm_topk_prob: bool = True,
    shared_dim: int = 0,
    dtype: mx.Dtype = mx.float32,
    pack: Pack = dense,
    seed: int = 0,
    ops: OpSet = REFERENCE,
) -> MoE:
    """Make a mixture of experts. If `pack` quantizes, the router has 8 bits, as in MLX checkpoints.

    Args:
        dim: E.
        hidden_dim: F, the number of hidden features of one expert.
        num_experts: X.
        num_experts_per_tok: K.
        norm_topk_prob: True to divide the routing weights of the K experts by their sum.
        shared_dim: the number of hidden features of a shared expert; 0 for none.
        dtype: the dtype of all numbers.
        pack: the function applied to the experts' weights; see `packed`.
        seed: the seed of all numbers.
        ops: the implementation of the maths.
    """
    wide, narrow = (num_experts, hidden_dim, dim), (num_experts, dim, hidden_dim)
    gate, up = (pack(matrix(wide, dtype, 100 * seed + number)) for number in (40, 41))
    router = normal((num_experts, dim), dtype, seed=100 * seed + 43, magnitude=0.5)
    return MoE(
        dim,
        hidden_dim,
        num_experts,
        num_experts_per_tok,
        quantize(router, 32, 8) if isinstance(gate, QuantizedTensor) else router,
        gate,
        up,
        pack(matrix(narrow, dtype, 100 * seed + 42)),
        norm_topk_prob=norm_topk_prob,
        shared=random_mlp(dim, shared_dim, dtype=dtype, pack=pack, seed=seed, ops=ops)
        if shared_dim
        else None,
        shared_gate=matrix((1, dim), dtype, 100 * seed + 44) if shared_dim else None,
        ops=ops,
    )


def random_decoder_layer(
    family: Family = "qwen3",
    hidden_size: int = 64,
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    hidden_dim: int = 96,
    num_experts: int = 6,
    num_experts_per_tok: int = 2,
    shared_dim: int = 0,
    dtype: mx.Dtype = mx.float32,
    pack: Pack = dense,
    seed: int = 0,
    rope: RoPE | None = None,
    ops: OpSet = REFERENCE,
) -> DecoderLayer:
    """Make a decoder layer of one family.

    To compare a MoE layer with an oracle, use float32. In float16 and bfloat16 the router may
    choose other experts because of rounding, and no tolerance covers that difference.

    Args:
        family: see `Family`.
        hidden_size: E.
        num_heads: H.
        num_kv_heads: Hkv.
        head_dim: D.
        hidden_dim: F.
        num_experts: X of a MoE.
        num_experts_per_tok: K of a MoE.
        shared_dim: as in `random_moe`.
        dtype: the dtype of all numbers.
        pack: the function applied to the weights of projections; see `packed`.
        seed: the seed of all numbers. Use a different seed for each layer of a stack.
        rope: the rotation. Unless given, it has base 1e6 and 1,000 positions.
        ops: the implementation of the maths.
    """
    attention = random_attention(
        hidden_size,
        num_heads,
        num_kv_heads,
        head_dim,
        biased="qkv" if family == "qwen2" else "",
        normed=family != "qwen2",
        dtype=dtype,
        pack=pack,
        seed=seed,
        rope=rope,
        ops=ops,
    )
    mlp = (
        random_moe(
            hidden_size,
            hidden_dim,
            num_experts,
            num_experts_per_tok,
            shared_dim=shared_dim,
            dtype=dtype,
            pack=pack,
            seed=seed,
            ops=ops,
        )
        if family == "qwen3_moe"
        else random_mlp(hidden_size, hidden_dim, dtype=dtype, pack=pack, seed=seed, ops=ops)
    )
    norms = [random_norm(hidden_size, dtype, seed=100 * seed + n, ops=ops) for n in (50, 51)]
    return DecoderLayer(norms[0], attention, norms[1], mlp)


def random_pages(
    layer: DecoderLayer | GroupedQueryAttention | GatedAttention,
    num_pages: int,
    page_size: int,
    *,
    dtype: mx.Dtype = mx.float32,
    pack: Pack = dense,
    seed: int = 0,
    window: int | None = None,
) -> PagedCache:
    """Make a paged cache full of random numbers, so that a test notices a read of a wrong page.

    Args:
        layer: a layer with the Hkv and D of the pages.
        num_pages: P.
        page_size: the number of tokens in a page.
        dtype: the dtype of the numbers, or of the scales of quantized numbers.
        pack: the function applied to keys and to values; see `packed`.
        seed: the seed of all numbers.
        window: the number of most recent tokens that a token sees; None for all tokens.
    """
    attention = attention_of(layer)
    shape = (num_pages, attention.num_kv_heads, page_size, attention.head_dim)
    keys, values = (pack(normal(shape, dtype, seed=100 * seed + number)) for number in (60, 61))
    return PagedCache(keys, values, window)


def matrix(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> mx.array:
    """Return weights under which activations keep their magnitude."""
    return normal(shape, dtype, seed=seed, magnitude=shape[-1] ** -0.5)


def norm_weight(dim: int, dtype: mx.Dtype, seed: int) -> mx.array:
    """Return weights around 1, like the weights of trained norms."""
    return 1 + normal((dim,), dtype, seed=seed, magnitude=0.1)


def attention_of(
    layer: DecoderLayer | GroupedQueryAttention | GatedAttention,
) -> GroupedQueryAttention:
    """Return the attention of a layer that has keys and values, without its output gate.

    Raises:
        TypeError: if the layer is recurrent.
    """
    mixer = layer.mixer if isinstance(layer, DecoderLayer) else layer
    attention = mixer.attention if isinstance(mixer, GatedAttention) else mixer
    if not isinstance(attention, GroupedQueryAttention):
        raise TypeError(f"layer: expected attention, got {type(attention).__name__}")
    return attention
