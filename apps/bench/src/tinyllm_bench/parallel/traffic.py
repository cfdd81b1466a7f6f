"""The messages that ranks exchange for one token."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm_layers import Batch
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.parallel.command import Forward, encode

from tinyllm_bench.parallel.ring import gather_messages, sum_messages

HEADERS = 52
"""Bytes of a packet beside its content: IPv4 20, TCP 20, its timestamps 12."""

_CONTENT = 1500 - HEADERS


@dataclass(frozen=True)
class Traffic:
    """The messages of one rank for one decoded token, and the share of them that has to wait.

    Attributes:
        messages: bytes of each message.
        acknowledged: packets of other ranks that it acknowledges, each in a packet of its own,
            since a connection carries data in one direction alone.
        hops: messages of which each waits for the one before it.
        path_bytes: bytes of these and of the acknowledgements before them, on the wire.
    """

    messages: tuple[int, ...]
    acknowledged: int
    hops: int
    path_bytes: int

    @property
    def payload(self) -> int:
        """Bytes that programs give to the system."""
        return sum(self.messages)

    @property
    def wire_bytes(self) -> int:
        """The same with headers, and with acknowledgements."""
        return sum(map(on_wire, self.messages)) + HEADERS * self.acknowledged


def on_wire(message: int) -> int:
    """Bytes of a message with the headers of its packets."""
    return message + HEADERS * packets(message)


def packets(message: int) -> int:
    """Packets of a message; none has none."""
    return -(-message // _CONTENT)


def ring_traffic(config: QwenConfig, width: int, size: int, rank: int, keys: int) -> Traffic:
    """The messages of a rank for one token over MLX's ring, chosen greedily.

    Args:
        config: the whole model.
        width: bytes of a number in the hidden state.
        size: number of ranks.
        rank: the rank that sends.
        keys: tokens before this one, a number in the command.
    """
    if size == 1:
        return Traffic((), 0, 0, 0)
    ring = _ring_messages(config, width, size, rank)
    left = _ring_messages(config, width, size, (rank - 1) % size)
    command = _command_bytes(config, keys)
    longest = sum_messages(config.hidden_size, width, size, 0)[0]
    gathered = gather_messages(_best_bytes(1), size)
    # Rank 0 begins at once, the others with its command: one hop more. From then on each
    # step of the ring waits for one neighbor, and the acknowledgement goes first.
    steps = [longest] * (sums(config) * 2 * (size - 1)) + gathered
    return Traffic(
        messages=(*([command] * (size - 1) if rank == 0 else []), *ring),
        acknowledged=sum(map(packets, left)) + (0 if rank == 0 else 1),
        hops=1 + len(steps),
        path_bytes=on_wire(command) * (size - 1)
        + sum(on_wire(step) + HEADERS * packets(step) for step in steps),
    )


def mesh_traffic(config: QwenConfig, width: int, size: int, rank: int, keys: int) -> Traffic:
    """The same where each rank sends its part to all others and adds up theirs.

    Headers are counted as for TCP, which is more than RDMA has.
    """
    if size == 1:
        return Traffic((), 0, 0, 0)
    exchanges = [config.hidden_size * width] * sums(config) + [_best_bytes(1)]
    command = _command_bytes(config, keys)
    told = [exchange for exchange in exchanges for _ in range(size - 1)]
    return Traffic(
        messages=(*([command] * (size - 1) if rank == 0 else []), *told),
        acknowledged=0,
        hops=1 + len(exchanges),
        path_bytes=on_wire(command) * (size - 1) + sum(map(on_wire, told)),
    )


def sums(config: QwenConfig) -> int:
    """Of a token: the embedding, and two a block."""
    return 1 + 2 * config.num_hidden_layers


def _ring_messages(config: QwenConfig, width: int, size: int, rank: int) -> list[int]:
    one = sum_messages(config.hidden_size, width, size, rank)
    return one * sums(config) + gather_messages(_best_bytes(1), size)


def _best_bytes(k: int) -> int:
    """Of a `BestTokens` as ranks tell it: scores, ids, and what normalizes them."""
    return 4 * (2 * k + 1)


def _command_bytes(config: QwenConfig, keys: int) -> int:
    """Bytes of the command for one token, with the longest id and a position of as many digits."""
    tokens, batch = [[config.vocab_size - 1]], Batch.at(keys, 1, 1)
    return len(encode(Forward(0, length=keys, tokens=tokens, batch=batch, output="best")))
