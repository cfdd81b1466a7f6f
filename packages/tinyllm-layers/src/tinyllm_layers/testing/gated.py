"""Random layers of Qwen3.5: gated DeltaNet, and attention with an output gate."""

import mlx.core as mx
from tinyllm_ops import REFERENCE, OpSet
from tinyllm_ops.testing import normal

from tinyllm_layers.communicator import SINGLE, Communicator
from tinyllm_layers.gated_attention import GatedAttention
from tinyllm_layers.gated_delta_net import GatedDeltaNet
from tinyllm_layers.rope import RoPE
from tinyllm_layers.testing.layers import Pack, dense, matrix, norm_weight, random_attention


def random_gated_delta_net(
    hidden_size: int = 64,
    num_key_heads: int = 2,
    num_value_heads: int = 4,
    key_dim: int = 16,
    value_dim: int = 8,
    *,
    kernel: int = 4,
    dtype: mx.Dtype = mx.float32,
    pack: Pack = dense,
    seed: int = 0,
    ops: OpSet = REFERENCE,
) -> GatedDeltaNet:
    """Make a gated DeltaNet. The decay rates exp(a_log) of its heads range from 0.1 to 10.

    Args:
        hidden_size: E.
        num_key_heads: Hk.
        num_value_heads: Hv.
        key_dim: Dk.
        value_dim: Dv.
        kernel: K, the number of weights per channel of the convolution.
        dtype: the dtype of all numbers but `a_log`, which is float32.
        pack: the function applied to the weights of the five projections; see `packed`.
        seed: the seed of all numbers.
        ops: the implementation of the maths.
    """
    width = num_value_heads * value_dim
    channels = 2 * num_key_heads * key_dim + width
    wqkv, wz, wb, wa, wo = (
        pack(matrix(shape, dtype, 100 * seed + 70 + i))
        for i, shape in enumerate(
            [
                (channels, hidden_size),
                (width, hidden_size),
                (num_value_heads, hidden_size),
                (num_value_heads, hidden_size),
                (hidden_size, width),
            ]
        )
    )
    return GatedDeltaNet(
        hidden_size,
        num_key_heads,
        num_value_heads,
        key_dim,
        value_dim,
        wqkv,
        wz,
        wb,
        wa,
        matrix((channels, kernel), dtype, 100 * seed + 75),
        mx.linspace(-2.3, 2.3, num_value_heads),
        normal((num_value_heads,), dtype, seed=100 * seed + 76),
        norm_weight(value_dim, dtype, 100 * seed + 77),
        wo,
        ops=ops,
    )


def random_gated_attention(
    hidden_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    rotary_dims: int = 8,
    *,
    dtype: mx.Dtype = mx.float32,
    pack: Pack = dense,
    seed: int = 0,
    communicator: Communicator = SINGLE,
    ops: OpSet = REFERENCE,
) -> GatedAttention:
    """Make an attention layer with an output gate, head norms, and partial rotation.

    Args:
        hidden_size: E.
        num_heads: H.
        num_kv_heads: Hkv.
        head_dim: D.
        rotary_dims: the number of rotated features of a head.
        dtype: the dtype of all numbers.
        pack: the function applied to the weights of the projections; see `packed`.
        seed: the seed of all numbers.
        communicator: the processes that share the layer.
        ops: the implementation of the maths.
    """
    attention = random_attention(
        hidden_size,
        num_heads,
        num_kv_heads,
        head_dim,
        normed=True,
        dtype=dtype,
        pack=pack,
        seed=seed,
        rope=RoPE(rotary_dims, 1000, 1e7, ops=ops),
        communicator=communicator,
        ops=ops,
    )
    gate = matrix((num_heads * head_dim, hidden_size), dtype, 100 * seed + 80)
    return GatedAttention(attention, pack(gate))
