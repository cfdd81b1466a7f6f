"""Case of an operation: its inputs, its call and its cost."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import mlx.core as mx
from tinyllm_layers import Backend
from tinyllm_ops import OpSet, Phase, Weight

from tinyllm_bench.cost import Cost

T = TypeVar("T")

Call = Callable[[OpSet, int], Weight]
"""Runs an operation with the weights of layer `i`, modulo the number of layers.

Varying `i` reproduces the cache misses of a forward pass.
"""


@dataclass(frozen=True)
class Regime:
    """The tokens that one call computes: `length` new tokens in each of `rows` sequences."""

    name: str  # "decode" (one token), "batch" (one token of each sequence) or "prefill"
    rows: int  # sequences, B
    length: int  # new tokens of each sequence, L
    keys: int  # tokens that the last new token attends to, S

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return self.rows * self.length

    @property
    def phase(self) -> Phase:
        """Phase of generation."""
        return "prefill" if self.name == "prefill" else "decode"


@dataclass(frozen=True)
class Work:
    """An operation with its inputs in memory, and the cost of one call."""

    call: Call
    cost: Cost


@dataclass(frozen=True)
class OpCase:
    """An operation at one size. `make` creates the inputs just before the measurement."""

    op: str  # name of the `OpSet` field, or of the layer
    operand: str  # operand with its size, for the report
    regime: Regime  # tokens of one call
    make: Callable[[], Work]  # makes the inputs


def cases_of(
    op: str,
    operand: str | Callable[[Regime], str],
    regimes: Sequence[Regime],
    work: Callable[[Regime], Work],
) -> list[OpCase]:
    """Return one case for each regime."""
    sizes = [operand if isinstance(operand, str) else operand(each) for each in regimes]
    return [
        OpCase(op, size, regime, partial(work, regime))
        for size, regime in zip(sizes, regimes, strict=True)
    ]


def nbytes(*operands: Weight | None) -> int:
    """Return the bytes of all operands."""
    return sum(operand.nbytes for operand in operands if operand is not None)


def activations(*shape: int, dtype: mx.Dtype) -> mx.array:
    """Draw normally distributed numbers, similar to activations between two layers."""
    x = mx.random.normal(shape).astype(dtype)
    mx.eval(x)
    return x


class PreparedLayers(Generic[T]):
    """One object per layer for each OpSet, made when the OpSet is first used."""

    def __init__(self, make: Callable[[OpSet], Sequence[T]]) -> None:
        """Store the function that makes the objects of all layers. It returns at least one."""
        self._make = make
        self._layers: dict[str, Sequence[T]] = {}

    def of(self, ops: OpSet, call: int) -> T:
        """Return the object of a call. Consecutive calls use consecutive layers."""
        if ops.name not in self._layers:
            self._layers[ops.name] = self._make(ops)
        layers = self._layers[ops.name]
        return layers[call % len(layers)]


def prepared_weights(layers: Sequence[Weight]) -> PreparedLayers[Weight]:
    """Return the same weight of several layers, in the memory layout of each OpSet."""

    def make(ops: OpSet) -> list[Weight]:
        weights = {str(i): layer for i, layer in enumerate(layers)}
        prepare(ops, weights)
        return list(weights.values())

    return PreparedLayers(make)


def prepare(ops: OpSet, weights: MutableMapping[str, Weight]) -> None:
    """Convert weights in place to the memory layout of a `Backend`. Other OpSets need none."""
    if isinstance(ops, Backend):
        ops.prepare(weights)
