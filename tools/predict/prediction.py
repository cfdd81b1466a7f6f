"""Predicted decoding speed of one model on several ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from predict.link import Link
from predict.messages import TokenMessages, mesh_messages, ring_messages
from predict.model_spec import ModelSpec
from tinyllm_cli.messages import UsageError


@dataclass(frozen=True)
class Prediction:
    """One decoded token on several ranks.

    A rank reads its part of the weights, and waits for the other ranks. Reading and waiting do not
    overlap: each all-reduce needs the previous product, and the next product needs the all-reduce.

    Attributes:
        link: name of the link.
        ranks: number of ranks.
        read_bytes: bytes that are read by the rank that reads most.
        messages: messages of rank 0, which also sends the commands.
        computing: seconds of computing.
        waiting: seconds of waiting.
        speedup: speed as a multiple of one rank.
    """

    link: str
    ranks: int
    read_bytes: int
    messages: TokenMessages
    computing: float
    waiting: float
    speedup: float

    @property
    def seconds(self) -> float:
        """Seconds of a token."""
        return self.computing + self.waiting

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of one sequence."""
        return 1 / self.seconds


@dataclass(frozen=True)
class Assumptions:
    """Given values of a prediction.

    Attributes:
        read_rate: bytes per second that a rank reads.
        fixed: seconds of a token that more ranks do not reduce.
        keys: tokens in the cache.
    """

    read_rate: float
    fixed: float
    keys: int

    @classmethod
    def of_one(
        cls, model: ModelSpec, read_rate: float, alone: float | None, keys: int
    ) -> "Assumptions":
        """Take the time of one rank beyond reading as fixed.

        Args:
            model: the model.
            read_rate: bytes per second that a rank reads.
            alone: tokens per second of one rank, None if only reading takes time.
            keys: tokens in the cache.

        Raises:
            UsageError: if one rank cannot be so fast.
        """
        if alone is None:
            return cls(read_rate, 0.0, keys)
        reading = model.read_bytes(0, 1, keys) / read_rate
        if 1 / alone < reading:
            raise UsageError(
                f"--alone: expected at most {1 / reading:.4g} tokens/s at "
                f"{read_rate / 1e9:.4g} GB/s, got {alone:g}: give --read what a rank reads"
            )
        return cls(read_rate, 1 / alone - reading, keys)


def predict(
    model: ModelSpec, link: Link, most: int, given: Assumptions
) -> tuple[list[Prediction], str]:
    """Predict one rank, two ranks, and so on up to `most` ranks.

    Returns:
        A prediction for each number of ranks that can divide the model, and the reason why the
        first other number cannot.
    """
    found: list[Prediction] = []
    refusal = ""
    messages_of = mesh_messages if link.mesh else ring_messages
    for size in range(1, most + 1):
        try:
            read = max(model.read_bytes(rank, size, given.keys) for rank in range(size))
        except ValueError as error:
            refusal = refusal or f"{size} ranks: {error}"
            continue
        messages = messages_of(model.config, model.dtype.size, size, 0, given.keys)
        computing = given.fixed + read / given.read_rate
        waiting = link.seconds(messages.hops, messages.path_bytes)
        alone = found[0].seconds if found else computing
        speedup = alone / (computing + waiting)
        found.append(Prediction(link.name, size, read, messages, computing, waiting, speedup))
    return found, refusal


def fastest(predictions: Sequence[Prediction]) -> Prediction:
    """Return the prediction with most tokens per second."""
    return max(predictions, key=lambda each: each.tokens_per_second)


def break_even(predictions: Sequence[Prediction], link: Link) -> float:
    """Return the latency in seconds at which two ranks are as fast as one; below 0 there is none.

    Raises:
        ValueError: if one of 1 and 2 ranks is not predicted.
    """
    both = {each.ranks: each for each in predictions}
    if not {1, 2} <= both.keys():
        raise ValueError(f"predictions: expected some of 1 and 2 ranks, got {sorted(both)}")
    one, two = both[1], both[2]
    saved = one.computing - two.computing - two.messages.path_bytes / link.bandwidth
    return saved / two.messages.hops
