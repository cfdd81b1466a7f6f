"""Attention over dense and quantized keys, in one array or in pages."""

from typing import TYPE_CHECKING

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import Mask, PageTable, Phase, Weight
from tinyllm_ops.checks import check_attention, check_paged_attention
from tinyllm_ops.quantization.tensor import map_arrays
from tinyllm_ops.reference.attention import additive_mask

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import native_weight

if TYPE_CHECKING:
    from tinyllm_kernels._cpu import NativeWeight


def attention(
    q: Float[mx.array, "*batch H L D"],
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: Mask = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch H L D"]:
    """softmax(q k^T * scale + mask) v. Keys are read in place, once for all heads of a group."""
    check_attention(q, k, v, mask)
    *batch, heads, length, dim = q.shape
    keys = k.shape[-2]
    if q.size == 0 or keys == 0:
        return mx.zeros(q.shape, q.dtype)
    scale = dim**-0.5 if scale is None else scale
    added = None
    if isinstance(mask, mx.array):
        whole = mx.broadcast_to(additive_mask(mask), (*batch, heads, length, keys))
        added = _four_axes(whole)
    causal = isinstance(mask, str)
    out = native.attention(_four_axes(q), _stored(k), _stored(v), scale, causal, added, phase)
    return out.reshape(q.shape) if q.ndim != 4 else out


def paged_attention(
    q: Float[mx.array, "T H D"],
    k: Weight,
    v: Weight,
    page_table: PageTable,
    scale: float | None = None,
    window: int | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "T H D"]:
    """Attend to keys and values in pages. The pages are read in place."""
    check_paged_attention(q, k, v, page_table, window)
    if q.size == 0 or k.shape[0] == 0 or not page_table.seq_lens:
        return mx.zeros(q.shape, q.dtype)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    arrays = page_table.arrays
    return native.paged_attention(
        q,
        native_weight(k),
        native_weight(v),
        arrays.block_tables,
        arrays.cu_seqlens_q,
        arrays.seq_lens,
        scale,
        window or 0,
        phase,
    )


def _four_axes(x: mx.array) -> mx.array:
    """Return x as `batch heads tokens width`. An array of four axes is returned unchanged.

    A reshape could copy such an array.
    """
    return x if x.ndim == 4 else x.reshape(-1, *x.shape[-3:])


def _stored(x: Weight) -> "NativeWeight":
    """Convert keys or values, reshaped to four axes, to the tuple of the extension."""
    return native_weight(map_arrays(_four_axes, x))
