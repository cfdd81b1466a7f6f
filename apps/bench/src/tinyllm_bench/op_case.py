"""One operation at one size: the inputs, the call, and what it cannot do without."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops import OpSet, Phase, Weight

from tinyllm_bench.cost import Cost

Call = Callable[[OpSet, int], Weight]


@dataclass(frozen=True)
class Regime:
    """How many tokens of how many texts are computed at once.

    Attributes:
        name: "decode" (one token), "batch" (one token of each of several texts) or "prefill".
        rows: texts, B.
        length: tokens of each, L.
        keys: tokens that the last of them sees, S.
    """

    name: str
    rows: int
    length: int
    keys: int

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return self.rows * self.length

    @property
    def phase(self) -> Phase:
        """The phase of generation that such tokens belong to."""
        return "prefill" if self.name == "prefill" else "decode"


@dataclass(frozen=True)
class Work:
    """An operation with its inputs in memory.

    Attributes:
        call: builds the i-th call; i chooses the layer whose weights it reads, so that calls find
            a weight in the cache exactly if a model's forward pass would.
        cost: of one call.
    """

    call: Call
    cost: Cost


@dataclass(frozen=True)
class OpCase:
    """A row of the table, whose inputs are made when its turn comes.

    Attributes:
        op: name of the `OpSet` field, or of the layer.
        operand: what it works on, with its size.
        regime: how much at once.
        make: makes the inputs.
    """

    op: str
    operand: str
    regime: Regime
    make: Callable[[], Work]


def nbytes(*operands: Weight | None) -> int:
    """Bytes of several operands, each once."""
    return sum(operand.nbytes for operand in operands if operand is not None)


def activations(*shape: int, dtype: mx.Dtype) -> mx.array:
    """Numbers like those between two layers."""
    x = mx.random.normal(shape).astype(dtype)
    mx.eval(x)
    return x
