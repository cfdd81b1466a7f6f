"""Messages that ranks exchange for one token.

MLX's ring (`mlx/distributed/ring/ring.cpp`) sends arrays of more than 256 KiB per rank over several
connections, or in several messages at once. No token comes near that size.
"""

from dataclasses import dataclass

from tinyllm_layers import Batch
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.parallel.command import Forward, encode

HEADERS = 52
"""Bytes of headers in a packet: IPv4 20, TCP 20, its timestamps 12."""

_PAYLOAD = 1500 - HEADERS


@dataclass(frozen=True)
class TokenMessages:
    """Messages of one rank for one decoded token.

    Attributes:
        messages: bytes of each message.
        acknowledged: packets from other ranks that this rank acknowledges. Each acknowledgement is
            a packet, because a connection carries data in one direction only.
        hops: messages of which each waits for the one before it.
        path_bytes: bytes of these messages and of the acknowledgements before them, on the wire.
    """

    messages: tuple[int, ...]
    acknowledged: int
    hops: int
    path_bytes: int

    @property
    def payload(self) -> int:
        """Bytes that the program sends."""
        return sum(self.messages)

    @property
    def wire_bytes(self) -> int:
        """Bytes on the wire, with headers and acknowledgements."""
        return sum(map(on_wire, self.messages)) + HEADERS * self.acknowledged


def on_wire(message: int) -> int:
    """Return the bytes of a message with the headers of its packets."""
    return message + HEADERS * packets(message)


def packets(message: int) -> int:
    """Return the number of packets of a message, 0 for an empty one."""
    return -(-message // _PAYLOAD)


def ring_messages(config: QwenConfig, width: int, size: int, rank: int, keys: int) -> TokenMessages:
    """Return the messages of a rank for one greedy token over MLX's ring.

    Args:
        config: the whole model.
        width: bytes of a number in the hidden state.
        size: number of ranks.
        rank: the rank that sends.
        keys: tokens before this one, a number in the command.
    """
    if size == 1:
        return TokenMessages((), 0, 0, 0)
    sent = _ring_sizes(config, width, size, rank)
    received = _ring_sizes(config, width, size, (rank - 1) % size)
    command = _command_bytes(config, keys)
    longest = all_reduce_sizes(config.hidden_size, width, size, 0)[0]
    gathered = all_gather_sizes(_best_tokens_bytes(1), size)
    # Rank 0 begins at once, the other ranks after its command: one more hop. Then each step of the
    # ring waits for one neighbor, and the acknowledgement is sent before the data.
    steps = [longest] * (all_reduces(config) * 2 * (size - 1)) + gathered
    return TokenMessages(
        messages=(*([command] * (size - 1) if rank == 0 else []), *sent),
        acknowledged=sum(map(packets, received)) + (0 if rank == 0 else 1),
        hops=1 + len(steps),
        path_bytes=on_wire(command) * (size - 1)
        + sum(on_wire(step) + HEADERS * packets(step) for step in steps),
    )


def mesh_messages(config: QwenConfig, width: int, size: int, rank: int, keys: int) -> TokenMessages:
    """Return the messages of a rank if each rank sends its part to all ranks and adds all parts.

    Headers are counted as for TCP. RDMA has smaller ones.
    """
    if size == 1:
        return TokenMessages((), 0, 0, 0)
    exchanges = [config.hidden_size * width] * all_reduces(config) + [_best_tokens_bytes(1)]
    command = _command_bytes(config, keys)
    sent = [exchange for exchange in exchanges for _ in range(size - 1)]
    return TokenMessages(
        messages=(*([command] * (size - 1) if rank == 0 else []), *sent),
        acknowledged=0,
        hops=1 + len(exchanges),
        path_bytes=on_wire(command) * (size - 1) + sum(map(on_wire, sent)),
    )


def all_reduces(config: QwenConfig) -> int:
    """Return the all-reduces of a token: one for the embedding, two for each layer."""
    return 1 + 2 * config.num_hidden_layers


def all_reduce_sizes(numbers: int, width: int, size: int, rank: int) -> list[int]:
    """Return the bytes of each message of a rank in a ring all-reduce.

    The array is cut into one segment per rank, the last of which may be shorter. Each segment goes
    round once to be added up, and once more to be distributed: 2 (size - 1) steps (Patarasuk and
    Yuan 2009).

    Args:
        numbers: numbers in the array.
        width: bytes of a number.
        size: number of ranks.
        rank: the rank that sends.
    """
    padded = max(numbers, size)
    each = -(-padded // size)
    lengths = [max(0, min(padded, start + each) - start) for start in range(0, each * size, each)]
    return [lengths[(rank + step) % size] * width for step in range(2 * (size - 1))]


def all_gather_sizes(nbytes: int, size: int) -> list[int]:
    """Return the bytes of each message of a rank in a ring all-gather."""
    return [nbytes] * (size - 1)


def _ring_sizes(config: QwenConfig, width: int, size: int, rank: int) -> list[int]:
    one = all_reduce_sizes(config.hidden_size, width, size, rank)
    return one * all_reduces(config) + all_gather_sizes(_best_tokens_bytes(1), size)


def _best_tokens_bytes(k: int) -> int:
    """Return the bytes of an exchanged `BestTokens`: scores, ids and their normalizer."""
    return 4 * (2 * k + 1)


def _command_bytes(config: QwenConfig, keys: int) -> int:
    """Return the bytes of the command for one token, with the longest id and this position."""
    tokens, batch = [[config.vocab_size - 1]], Batch.at(keys, 1, 1)
    return len(encode(Forward(0, length=keys, tokens=tokens, batch=batch, output="best")))
