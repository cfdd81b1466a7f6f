"""Graph of a Qwen model with random weights for OpenVINO.

The graph has the form of the models that `optimum-intel` exports, because OpenVINO recognizes its
fused operations by their form: RMSNorm, RoPE, attention over a cache, products of packed weights.
Keys and values are states of the graph. The head computes the logits of the last token alone.
"""

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes

from tinyllm_bench.errors import BenchError

Codes = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""Bytes of a matrix."""

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

BITS = (4, 8, 16)
SCALES = {4: 2.0**-8, 8: 2.0**-12}  # by bits; they make numbers as small as trained weights


@dataclass(frozen=True)
class OpenVinoFormat:
    """Storage format of matrices: int4 with groups, int8 with a scale for each row, or float16.

    Integers are symmetric: a scale without a zero point, the default of OpenVINO's tools for int4
    on CPUs. Raise `BenchError` if there is no type with these bits.
    """

    bits: int
    group_size: int  # codes of 4 bits that share a float16 scale

    def __post_init__(self) -> None:
        """Check the bits."""
        if self.bits not in BITS:
            known = ", ".join(map(str, BITS))
            raise BenchError(f"openvino is compared at {known} bits, not at {self.bits}")

    def __str__(self) -> str:
        """Return the name of the type."""
        return f"int{self.bits}" if self.bits < 16 else "f16"

    def group(self, columns: int) -> int:
        """Return the number of codes that share a scale. Raise `BenchError` if it does not fit."""
        size = self.group_size if self.bits == 4 else columns
        if columns % size:
            raise BenchError(f"openvino: {columns} columns are no multiple of groups of {size}")
        return size

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor. Vectors are float32."""
        numbers = math.prod(shape)
        if len(shape) == 1:
            return numbers * 4
        scales = 0 if self.bits == 16 else numbers // self.group(shape[-1])
        return numbers * self.bits // 8 + scales * 2


def tensor_bytes(config: QwenConfig, weights: OpenVinoFormat) -> dict[str, int]:
    """Return the bytes of each tensor by name. Raise `BenchError` if the graph cannot be built."""
    if config.experts is not None:
        raise BenchError("openvino: a mixture of experts is not supported")
    if config.recurrent is not None:
        raise BenchError("openvino: a model with recurrent layers is not supported")
    return {name: weights.nbytes(shape) for name, shape in expected_shapes(config).items()}


def random_codes(config: QwenConfig, weights: OpenVinoFormat) -> dict[str, Codes]:
    """Draw the bytes of each matrix by name. The low four bits of a byte are the first code."""
    draw, codes = np.random.default_rng(0), {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 1:
            continue
        codes[name] = draw.integers(0, 256, math.prod(shape) * weights.bits // 8, np.uint8)
        if weights.bits == 16:  # the exponent of 2^-6, as in `random_weights`
            numbers = codes[name].view(np.uint16)
            numbers[:] = numbers & np.uint16(0x83FF) | np.uint16(9 << 10)
    return codes


def build_model(config: QwenConfig, weights: OpenVinoFormat, codes: Mapping[str, Codes]) -> Any:
    """Return the model as an `openvino.Model` with inputs `ids`, `positions` and `beams`.

    Norms are ones, biases are zeros. The graph refers to the memory of packed codes.
    """
    return _Builder(config, weights, codes).build()


class _Builder:
    """Builds the graph of one model. Nodes are of `openvino`, which has no types."""

    def __init__(
        self, config: QwenConfig, weights: OpenVinoFormat, codes: Mapping[str, Codes]
    ) -> None:
        self._openvino = importlib.import_module("openvino")
        self._ops = importlib.import_module("openvino.opset13")
        self._config, self._weights, self._codes = config, weights, codes
        self._shapes = expected_shapes(config)
        self._sinks: list[Any] = []

    def build(self) -> Any:
        """Return the model."""
        ops, config = self._ops, self._config
        ids, positions = (ops.parameter([-1, -1], np.int64, name) for name in ("ids", "positions"))
        self._beams = ops.parameter([-1], np.int32, "beams")
        # The embedding and the head share their codes. Each has its own operations that unpack
        # them, because OpenVINO fuses these with the operation that follows.
        table = self._stored("embed_tokens.weight")
        x = ops.gather(self._unpacked(table), ids, self._integers(0))
        self._batch = ops.gather(ops.shape_of(ids), self._integers(0), self._integers(0))
        self._cos, self._sin = self._angles(positions)
        for layer in range(config.num_hidden_layers):
            name = f"layers.{layer}"
            normed = self._norm(x, f"{name}.input_layernorm.weight")
            x = ops.add(x, self._attention(normed, f"{name}.self_attn"))
            normed = self._norm(x, f"{name}.post_attention_layernorm.weight")
            x = ops.add(x, self._mlp(normed, f"{name}.mlp"))
        last = ops.gather(x, self._integers([-1]), self._integers(1))
        head = table if config.tie_word_embeddings else self._stored("lm_head.weight")
        normed = self._norm(last, "norm.weight")
        logits = ops.matmul(normed, self._unpacked(head), False, True)
        result = ops.result(logits)
        return self._openvino.Model([result], self._sinks, [ids, positions, self._beams])

    def _attention(self, x: Any, name: str) -> Any:
        ops, config = self._ops, self._config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        queries = self._rotated(self._heads(x, f"{name}.q_proj", heads, f"{name}.q_norm"))
        keys = self._rotated(self._heads(x, f"{name}.k_proj", kv_heads, f"{name}.k_norm"))
        values = self._heads(x, f"{name}.v_proj", kv_heads)
        cached = [
            self._shared_by_queries(self._cached(new, f"{name}.{kind}"))
            for new, kind in ((keys, "keys"), (values, "values"))
        ]
        mixed = ops.scaled_dot_product_attention(queries, *cached, causal=True)
        mixed = ops.transpose(mixed, self._integers([0, 2, 1, 3]))
        mixed = ops.reshape(mixed, self._integers([0, 0, heads * config.head_dim]), True)
        return self._linear(mixed, f"{name}.o_proj")

    def _mlp(self, x: Any, name: str) -> Any:
        ops = self._ops
        gate = ops.swish(self._linear(x, f"{name}.gate_proj"))
        return self._linear(
            ops.multiply(gate, self._linear(x, f"{name}.up_proj")), f"{name}.down_proj"
        )

    def _heads(self, x: Any, name: str, heads: int, norm: str | None = None) -> Any:
        """Project, split into heads, normalize each head if the model does, and transpose."""
        ops = self._ops
        y = self._linear(x, name)
        y = ops.reshape(y, self._integers([0, 0, heads, self._config.head_dim]), True)
        if norm is not None and self._config.qk_norm:
            y = self._norm(y, f"{norm}.weight")
        return ops.transpose(y, self._integers([0, 2, 1, 3]))

    def _cached(self, new: Any, name: str) -> Any:
        """Append new keys or values to a state, and return all of them."""
        ops, config = self._ops, self._config
        heads, head_dim = config.num_key_value_heads, config.head_dim
        parts = (self._batch, *map(self._integers, (heads, 0, head_dim)))
        one = self._integers([1])
        shape = ops.concat([ops.reshape(part, one, False) for part in parts], 0)
        empty = ops.broadcast(self._floats(0.0), shape)
        stored = ops.read_value(empty, name, np.float32, [-1, heads, -1, head_dim])
        stored = ops.gather(stored, self._beams, self._integers(0))
        joined = ops.concat([stored, new], 2)
        self._sinks.append(ops.assign(joined, name))
        return joined

    def _shared_by_queries(self, cached: Any) -> Any:
        """Repeat each key head for the query heads that share it."""
        ops, config = self._ops, self._config
        heads = config.num_attention_heads
        shared = heads // config.num_key_value_heads
        if shared == 1:
            return cached
        apart = ops.unsqueeze(cached, self._integers(2))
        counts = self._integers([1, 1, shared, 1, 1])
        repeated = ops.broadcast(apart, counts, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(repeated, self._integers([0, heads, -1, config.head_dim]), True)

    def _angles(self, positions: Any) -> tuple[Any, Any]:
        """Return the cosines and sines of RoPE, of shape [batch, 1, tokens, head_dim]."""
        ops, head_dim = self._ops, self._config.head_dim
        pairs = np.arange(0, head_dim, 2, dtype=np.float32) / head_dim
        powers = (self._config.rope_theta**-pairs).astype(np.float32)
        frequencies = self._floats(powers)  # one for each pair
        apart = ops.unsqueeze(ops.convert(positions, np.float32), self._integers(2))
        angles = ops.multiply(apart, frequencies)
        angles = ops.unsqueeze(ops.concat([angles, angles], -1), self._integers(1))
        return ops.cos(angles), ops.sin(angles)

    def _rotated(self, x: Any) -> Any:
        """Apply RoPE to heads: the first half of a head is paired with its second half."""
        ops, head_dim = self._ops, self._config.head_dim
        half, end, step, axis = (self._integers([each]) for each in (head_dim // 2, head_dim, 1, 3))
        first = ops.slice(x, self._integers([0]), half, step, axis)
        second = ops.slice(x, half, end, step, axis)
        turned = ops.concat([ops.multiply(second, self._floats(-1.0)), first], -1)
        return ops.add(ops.multiply(x, self._cos), ops.multiply(turned, self._sin))

    def _norm(self, x: Any, name: str) -> Any:
        ops = self._ops
        squares = ops.power(x, self._floats(2.0))
        mean = ops.reduce_mean(squares, self._integers([-1]), True)
        root = ops.sqrt(ops.add(mean, self._floats(self._config.rms_norm_eps)))
        normed = ops.multiply(x, ops.divide(self._floats(1.0), root))
        return ops.multiply(normed, self._floats(np.ones(self._shapes[name], np.float32)))

    def _linear(self, x: Any, name: str) -> Any:
        weight = self._unpacked(self._stored(f"{name}.weight"))
        y = self._ops.matmul(x, weight, False, True)
        bias = self._shapes.get(f"{name}.bias")
        return y if bias is None else self._ops.add(y, self._floats(np.zeros(bias, np.float32)))

    def _stored(self, name: str) -> Any:
        """Return the codes of a matrix, of shape [rows, groups, codes], or its float16 numbers."""
        rows, columns = self._shapes[name]
        codes, types = self._codes[name], self._openvino.Type
        if self._weights.bits == 16:
            return self._ops.constant(codes.view(np.float16).reshape(rows, columns))
        size = self._weights.group(columns)
        kind = types.i4 if self._weights.bits == 4 else types.i8
        tensor = self._openvino.Tensor(codes, [rows, columns // size, size], kind)
        return self._ops.constant(tensor)

    def _unpacked(self, stored: Any) -> Any:
        """Return the operations that convert a stored matrix to float32."""
        ops = self._ops
        if self._weights.bits == 16:
            return ops.convert(stored, np.float32)
        rows, groups, size = stored.get_output_shape(0)
        scales = np.full((rows, groups, 1), SCALES[self._weights.bits], np.float16)
        scaled = ops.multiply(ops.convert(stored, np.float16), ops.constant(scales))
        plain = ops.reshape(scaled, self._integers([rows, groups * size]), False)
        return ops.convert(plain, np.float32)

    def _integers(self, values: int | list[int]) -> Any:
        return self._ops.constant(np.array(values, np.int64))

    def _floats(self, values: float | Numbers) -> Any:
        return self._ops.constant(np.array(values, np.float32))
