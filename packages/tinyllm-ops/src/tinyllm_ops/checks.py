"""Checks of arguments, shared by all implementations of an op.

An `OpSet` may compute an op in any way, but all OpSets accept the same arguments. The reference
and the fast implementations call these checks, so that a mistake gives one message everywhere.
Every check raises ValueError and names the argument. The ops of recurrent layers have theirs in
`tinyllm_ops.recurrent_checks`.
"""

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Integer

from tinyllm_ops.opset import Positions
from tinyllm_ops.page_table import PageTable
from tinyllm_ops.quantization.tensor import Weight, check_format


def require_array(name: str, x: object) -> None:
    """Raise ValueError unless `x` is an MLX array."""
    if not isinstance(x, mx.array):
        raise ValueError(f"{name}: expected an mx.array, got {type(x).__name__}: use mx.array(...)")


def require_floating(name: str, x: mx.array) -> None:
    """Raise ValueError unless `x` is an MLX array of float32, float16 or bfloat16."""
    require_array(name, x)
    if x.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        raise ValueError(f"{name}: expected float32, float16 or bfloat16, got {x.dtype}")


def require_shape(name: str, x: Weight, expected: Sequence[int]) -> None:
    """Raise ValueError unless `x` has the shape `expected`."""
    if tuple(x.shape) != tuple(expected):
        raise ValueError(f"{name}: expected shape {tuple(expected)}, got {tuple(x.shape)}")


def require_dtype(name: str, x: mx.array, expected: mx.Dtype) -> None:
    """Raise ValueError unless `x` has the dtype `expected`."""
    if x.dtype != expected:
        raise ValueError(f"{name}: expected dtype {expected}, got {x.dtype}")


def require_rank(name: str, x: Weight, axes: str) -> None:
    """Raise ValueError unless `x` has one axis for each letter of `axes`, such as "O I"."""
    if len(x.shape) != len(axes.split()):
        raise ValueError(f"{name}: expected axes {axes}, got shape {tuple(x.shape)}")


def check_quantize(w: mx.array, group_size: int, bits: int, mode: str) -> None:
    """Require a floating w `*lead I`, I a multiple of group_size, and a format that MLX defines."""
    require_floating("w", w)
    check_format(group_size, bits, mode)
    if w.ndim == 0 or w.shape[-1] % group_size:
        raise ValueError(
            f"w: expected a last axis in groups of {group_size}, got shape {tuple(w.shape)}"
        )


def check_linear(
    x: mx.array, w: Weight, bias: mx.array | None, residual: mx.array | None = None
) -> None:
    """Require x `*batch I`, w `O I`, bias `O` and residual `*batch O` of one dtype.

    A packed w may have scales of any dtype.
    """
    require_floating("x", x)
    require_rank("w", w, "O I")
    out_features, in_features = w.shape
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise ValueError(f"x: expected shape (..., {in_features}), got {tuple(x.shape)}")
    if isinstance(w, mx.array):
        require_dtype("w", w, x.dtype)
    if bias is not None:
        require_shape("bias", bias, (out_features,))
        require_dtype("bias", bias, x.dtype)
    if residual is not None:
        require_shape("residual", residual, (*x.shape[:-1], out_features))
        require_dtype("residual", residual, x.dtype)


def check_expert_linear(x: mx.array, w: Weight, experts: mx.array) -> None:
    """Require x `*batch N I`, w `X O I`, and experts `*batch N` of an integer dtype."""
    require_floating("x", x)
    require_rank("w", w, "X O I")
    if x.ndim < 2 or x.shape[-1] != w.shape[-1]:
        raise ValueError(f"x: expected shape (..., N, {w.shape[-1]}), got {tuple(x.shape)}")
    if isinstance(w, mx.array):
        require_dtype("w", w, x.dtype)
    require_shape("experts", experts, x.shape[:-1])
    if not mx.issubdtype(experts.dtype, mx.integer):
        raise ValueError(f"experts: expected an integer dtype, got {experts.dtype}")
    if experts.size and not w.shape[0]:
        raise ValueError(f"w: expected a matrix for each of the experts, got shape {w.shape}")


def check_embedding(ids: mx.array, w: Weight) -> None:
    """Require ids of an integer dtype and w `V E`."""
    require_array("ids", ids)
    require_rank("w", w, "V E")
    if not mx.issubdtype(ids.dtype, mx.integer):
        raise ValueError(f"ids: expected an integer dtype, got {ids.dtype}")
    if isinstance(w, mx.array):
        require_floating("w", w)
    if ids.size and not w.shape[0]:
        raise ValueError(f"w: expected a row for each of the ids, got shape {w.shape}")


def check_rms_norm(x: mx.array, weight: mx.array, eps: float) -> None:
    """Require x `*batch D`, weight `D` with the dtype of x, and an eps that is not negative."""
    require_floating("x", x)
    if x.ndim == 0:
        raise ValueError("x: expected shape (..., D), got ()")
    require_shape("weight", weight, (x.shape[-1],))
    require_dtype("weight", weight, x.dtype)
    if not eps >= 0:
        raise ValueError(f"eps: expected a number not below 0, got {eps}")


def check_softmax(x: mx.array, axis: int) -> None:
    """Require a floating x and an axis that x has."""
    require_floating("x", x)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis: expected one of the {x.ndim} axes of x, got {axis}")


def check_scores(x: mx.array) -> None:
    """Require floating scores `*batch V` with V above 0."""
    require_floating("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x: expected rows of at least one score, got shape {tuple(x.shape)}")


def check_top_k(x: mx.array, k: int) -> None:
    """Require rows of scores `*batch V` and k in 1..V."""
    check_scores(x)
    if not 1 <= k <= x.shape[-1]:
        raise ValueError(f"k: expected 1 to {x.shape[-1]}, got {k}")


def check_log_probability(x: mx.array, ids: mx.array) -> None:
    """Require rows of scores `*batch V` and ids `*batch K` of an integer dtype."""
    check_scores(x)
    if ids.shape[:-1] != x.shape[:-1] or ids.ndim == 0:
        raise ValueError(f"ids: expected shape {(*x.shape[:-1], 'K')}, got {tuple(ids.shape)}")
    if not mx.issubdtype(ids.dtype, mx.integer):
        raise ValueError(f"ids: expected an integer dtype, got {ids.dtype}")


def check_swiglu(gate: mx.array, up: mx.array) -> None:
    """Require two floating arrays of one shape and dtype."""
    require_floating("gate", gate)
    require_shape("up", up, gate.shape)
    require_dtype("up", up, gate.dtype)


def check_rope(x: mx.array, base: float, dims: int | None = None) -> None:
    """Require x `B L H D`, an even number of rotated features up to D, and a base above 0."""
    require_floating("x", x)
    require_rank("x", x, "B L H D")
    if dims is None and x.shape[-1] % 2:
        raise ValueError(f"x: expected an even head dim D to pair, got {x.shape[-1]}")
    if dims is not None and (dims % 2 or not 0 < dims <= x.shape[-1]):
        raise ValueError(f"dims: expected an even number from 2 to {x.shape[-1]}, got {dims}")
    if not base > 0:
        raise ValueError(f"base: expected a number above 0, got {base}")


def position_array(
    positions: Positions, batch: int, length: int
) -> Integer[mx.array, "rows {length}"]:
    """Return positions as integers: `1 L` if all rows share them, otherwise `B L`.

    Args:
        positions: `slice(5, 10)` puts token 0 of every row at position 5. An integer array has
            shape `L`, `1 L` or `B L`.
        batch: number of rows, B.
        length: tokens per row, L.

    Raises:
        ValueError: if a slice does not cover exactly L positions from 0 on, or an array has another
            shape or dtype.
    """
    check_positions(positions)
    if isinstance(positions, slice):
        start = slice_start(positions, length)
        return mx.arange(start, start + length)[None]
    if not mx.issubdtype(positions.dtype, mx.integer):
        raise ValueError(f"positions: expected an integer dtype, got {positions.dtype}")
    if tuple(positions.shape) not in ((length,), (1, length), (batch, length)):
        raise ValueError(
            f"positions: expected shape {(length,)} or {(batch, length)}, "
            f"got {tuple(positions.shape)}"
        )
    return positions.reshape(-1, length) if length else mx.zeros((1, 0), mx.int32)


def check_positions(positions: object) -> None:
    """Raise ValueError unless `positions` is a slice or an array."""
    if not isinstance(positions, slice | mx.array):
        raise ValueError(
            f"positions: expected a slice or an integer array, got {positions!r}: "
            "`slice(3, 3 + L)` starts at 3"
        )


def slice_start(positions: slice, length: int) -> int:
    """Return the first of the `length` positions of a slice.

    Raises:
        ValueError: if the slice has a step, starts below 0, has another length, or exceeds int32.
    """
    start = positions.start or 0
    stop = start + length if positions.stop is None else positions.stop
    if start < 0 or positions.step not in (None, 1) or stop - start != length:
        raise ValueError(f"positions: expected a slice of {length} positions, got {positions}")
    if stop > 1 << 31:
        raise ValueError(f"positions: expected numbers of 31 bits, got {positions}")
    return int(start)


def check_simple_attention(q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None) -> None:
    """Require q `*batch L D`, k and v `*batch S D`, one dtype, and a mask for `*batch L S`."""
    require_floating("q", q)
    for name, x in (("q", q), ("k", k)):
        if x.ndim < 2:
            raise ValueError(f"{name}: expected axes (..., tokens, D), got {tuple(x.shape)}")
    require_shape("k", k, (*q.shape[:-2], k.shape[-2], q.shape[-1]))
    require_shape("v", v, k.shape)
    require_dtype("k", k, q.dtype)
    require_dtype("v", v, q.dtype)
    if isinstance(mask, str):
        raise ValueError(f"mask: expected an array or None, got {mask!r}: pass `causal_mask(L, S)`")
    check_mask(mask, (*q.shape[:-1], k.shape[-2]))


def check_attention(q: mx.array, k: Weight, v: Weight, mask: mx.array | str | None) -> None:
    """Require q `*batch H L D`, k and v `*batch Hkv S D`, and a mask for `*batch H L S`.

    H must be a multiple of Hkv.
    """
    require_floating("q", q)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x.shape) < 3:
            raise ValueError(f"{name}: expected axes (..., heads, tokens, D), got {tuple(x.shape)}")
    *batch, heads, length, dim = q.shape
    require_features("q", q)
    kv_heads, keys = k.shape[-3:-1]
    require_shape("k", k, (*batch, kv_heads, keys, dim))
    require_shape("v", v, k.shape)
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"q: expected a multiple of {kv_heads} key/value heads, got {heads} heads")
    for name, x in (("k", k), ("v", v)):
        if isinstance(x, mx.array):
            require_dtype(name, x, q.dtype)
    check_mask(mask, (*batch, heads, length, keys))


def require_features(name: str, x: mx.array) -> None:
    """Require heads that are not empty."""
    if x.shape[-1] == 0:
        raise ValueError(f"{name}: expected at least one feature per head, got {tuple(x.shape)}")


def check_paged_attention(
    q: mx.array, k: Weight, v: Weight, page_table: PageTable, window: int | None
) -> None:
    """Require q `T H D`, k and v `P Hkv page D`, and a window of at least one key or None.

    T, P and `page` must equal the number of tokens, the number of pages and the page size of the
    page table. H must be a multiple of Hkv.
    """
    require_floating("q", q)
    require_rank("q", q, "T H D")
    tokens, heads, dim = q.shape
    require_features("q", q)
    _require_pages("k", k, page_table)
    require_shape("k", k, (*k.shape[:-1], dim))
    require_shape("v", v, k.shape)
    kv_heads = k.shape[1]
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"q: expected a multiple of {kv_heads} key/value heads, got {heads} heads")
    for name, x in (("k", k), ("v", v)):
        if isinstance(x, mx.array):
            require_dtype(name, x, q.dtype)
    if tokens != page_table.count:
        raise ValueError(f"q: expected {page_table.count} tokens, as the table has, got {tokens}")
    if window is not None and not 1 <= window < 1 << 31:
        raise ValueError(f"window: expected 1 to 2^31 - 1 keys, or None, got {window}")


def check_write_pages(pages: Weight, rows: Weight, page_table: PageTable) -> None:
    """Require pages `P Hkv page D`, and rows `T Hkv D` in the format of the pages.

    P, `page` and T must equal the number of pages, the page size and the number of tokens of the
    page table.
    """
    _require_pages("pages", pages, page_table)
    require_shape("rows", rows, (page_table.count, pages.shape[1], pages.shape[3]))
    if isinstance(pages, mx.array) or isinstance(rows, mx.array):
        if not (isinstance(pages, mx.array) and isinstance(rows, mx.array)):
            raise ValueError("rows: expected the format of the pages: both dense or both quantized")
        require_dtype("rows", rows, pages.dtype)
        return
    if (pages.group_size, pages.bits, pages.mode) != (rows.group_size, rows.bits, rows.mode):
        raise ValueError(
            f"rows: expected {pages.bits} bits in groups of {pages.group_size} "
            f"({pages.mode}), got {rows.bits} in groups of {rows.group_size} ({rows.mode})"
        )
    require_dtype("rows.scales", rows.scales, pages.scales.dtype)


def _require_pages(name: str, pages: Weight, page_table: PageTable) -> None:
    """Raise ValueError unless `pages` has the number and size of pages of the table."""
    require_rank(name, pages, "P Hkv page D")
    num_pages, page_size = page_table.num_pages, page_table.page_size
    if (pages.shape[0], pages.shape[2]) != (num_pages, page_size):
        raise ValueError(
            f"{name}: expected {num_pages} pages of {page_size} tokens, as the table has, "
            f"got shape {tuple(pages.shape)}"
        )


def check_mask(mask: mx.array | str | None, scores: Sequence[int]) -> None:
    """Require None, "causal", or a floating or boolean mask that broadcasts to the scores."""
    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(f'mask: expected "causal", an array or None, got {mask!r}')
    elif mask is not None:
        if not isinstance(mask, mx.array):
            kind = type(mask).__name__
            raise ValueError(f'mask: expected "causal", an array or None, got {kind}')
        if mask.dtype != mx.bool_:
            require_floating("mask", mask)
        ends = zip(reversed(mask.shape), reversed(scores), strict=False)
        if mask.ndim > len(scores) or any(m not in (1, s) for m, s in ends):
            raise ValueError(
                f"mask: expected a shape that broadcasts to {tuple(scores)}, "
                f"got {tuple(mask.shape)}"
            )


def check_new_tokens(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    tokens: tuple[int, int],
    stored: tuple[int, ...] | None = None,
    dtype: mx.Dtype | None = None,
) -> None:
    """Refuse new tokens that do not fit the batch or the stored keys and values.

    Args:
        q: queries, `B H L D`.
        k: keys, `B Hkv L D`.
        v: values, `B Hkv L D`.
        tokens: B and L, as the batch states them.
        stored: shape of the stored keys, `B Hkv any D`; None if there are none.
        dtype: dtype of the stored keys; None if there are none.

    Raises:
        ValueError: if a shape or dtype does not fit. The message names the array.
    """
    require_rank("q", q, "B H L D")
    check_attention(q, k, v, None)
    rows, _, length, _ = q.shape
    if (rows, length) != tokens:
        raise ValueError(
            f"q: expected {tokens[0]} x {tokens[1]} tokens, as the batch has, got {rows} x {length}"
        )
    if k.shape[2] != length:
        raise ValueError(f"k: expected keys of {length} tokens, one per query, got {k.shape[2]}")
    check_appended(k, v, stored, dtype)


def check_appended(
    k: mx.array, v: mx.array, stored: tuple[int, ...] | None, dtype: mx.Dtype | None
) -> None:
    """Refuse new keys and values that do not match each other or the stored keys.

    A slice update would broadcast and cast mismatched arrays without an error.

    Args:
        k: new keys, `B Hkv L D`.
        v: new values, `B Hkv L D`.
        stored: shape of the stored keys, `B Hkv any D`; None if there are none.
        dtype: dtype of the stored keys; None if there are none.

    Raises:
        ValueError: if a shape or dtype differs. The message names the array.
    """
    require_rank("k", k, "B Hkv L D")
    if stored is not None:
        require_shape("k", k, (*stored[:2], k.shape[2], stored[3]))
    if dtype is not None:
        require_dtype("k", k, dtype)
    require_shape("v", v, k.shape)
    require_dtype("v", v, k.dtype)
