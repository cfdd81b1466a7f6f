"""Rows of a table, one for each token id."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Integer

from tinyllm_ops.contract import Weight, check_embedding
from tinyllm_ops.quantization import dequantize
from tinyllm_ops.quantized_tensor import QuantizedTensor


def embedding(ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
    """w[ids], with w of shape `V E`; of a quantized w only the rows asked for are read back.

    The result has the dtype of w (of its scales, or float32 where these are bytes). Ids must lie
    in 0..V-1: looking would force the graph to be computed, so nothing here can check.

    Raises:
        ValueError: if w is not a matrix or ids are not integers.
    """
    check_embedding(ids, w)
    if not isinstance(w, QuantizedTensor):
        return w[ids]
    return dequantize(w[ids], embedding_dtype(w))


def embedding_dtype(w: QuantizedTensor) -> mx.Dtype:
    """The dtype of the rows: that of the scales, or float32 where the scales are bytes."""
    return w.scales.dtype if mx.issubdtype(w.scales.dtype, mx.floating) else mx.float32
