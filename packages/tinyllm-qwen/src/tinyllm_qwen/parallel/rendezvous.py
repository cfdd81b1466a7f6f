"""The control channels of a group: rank 0 and the other ranks find each other."""

import hmac
import json
import os
import secrets
import socket
from pathlib import Path
from typing import cast

import mlx.core as mx
from tinyllm_layers import Communicator

from tinyllm_qwen.parallel.control_channel import HEARTBEAT_TIMEOUT, ControlChannel, LossCallback

_MESSAGE_BYTES = 512
"""Bytes of a text that is exchanged through the group."""


def connect(ranks: Communicator, on_loss: LossCallback) -> list[ControlChannel]:
    """Connect rank 0 to each of the other ranks.

    Rank 0 listens at the address that the launcher names (TINYLLM_DRIVER_ADDRESS names another
    one). It sends the port and a password through the group, which only the ranks can read.

    Args:
        ranks: the group.
        on_loss: a callback for the loss of a rank; see `ControlChannel`.

    Returns:
        On rank 0, a channel to every other rank, by rank. On every other rank, the channel to
        rank 0.

    Raises:
        OSError: if the address is not one of this machine, or cannot be reached.
    """
    if ranks.rank:
        host, port, password = json.loads(_broadcast(ranks, ""))
        try:
            connection = socket.create_connection((host, port), HEARTBEAT_TIMEOUT)
        except OSError as error:
            raise _unreachable(f"rank 0 is not to be reached at {host}:{port}", error) from error
        connection.sendall(json.dumps([ranks.rank, password]).encode() + b"\n")
        return [ControlChannel(connection, 0, on_loss)]
    password, host = secrets.token_hex(16), _own_host()
    try:
        with socket.create_server((host, 0)) as listening:
            listening.settimeout(HEARTBEAT_TIMEOUT)
            _broadcast(ranks, json.dumps([*listening.getsockname()[:2], password]))
            found: dict[int, socket.socket] = {}
            while len(found) < ranks.size - 1:
                connection, _ = listening.accept()
                rank = _rank_of(connection, password)
                if rank is None:
                    connection.close()
                else:
                    found[rank] = connection
    except OSError as error:
        raise _unreachable(f"the other ranks do not reach rank 0 at {host}", error) from error
    return [ControlChannel(connection, rank, on_loss) for rank, connection in sorted(found.items())]


def agree(ranks: Communicator, fact: str) -> None:
    """Check that all ranks state the same fact.

    Raises:
        ValueError: on every rank, if two ranks state different facts.
    """
    first, *others = [_text(codes) for codes in ranks.all_gather(_codes(fact))]
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise ValueError(
                f"rank 0 has {first}, rank {rank} {other}: start all ranks with the same options "
                "and the same files"
            )


def _broadcast(ranks: Communicator, text: str) -> str:
    """Return the text of the rank with a text that is not empty."""
    return _text(ranks.all_reduce(_codes(text)))


def _codes(text: str) -> mx.array:
    """Write a text as numbers of a fixed length."""
    codes = list(text.encode()[:_MESSAGE_BYTES])
    return mx.array(codes + [0] * (_MESSAGE_BYTES - len(codes)), dtype=mx.int32)


def _text(codes: mx.array) -> str:
    numbers = cast(list[int], codes.astype(mx.uint8).tolist())
    return bytes(numbers).rstrip(b"\0").decode(errors="replace")


def _own_host() -> str:
    """Return the address at which other ranks reach this machine.

    It is the address that a launcher gives to MLX's backends, or the name of the machine.
    """
    named = os.environ.get("TINYLLM_DRIVER_ADDRESS")
    if named:
        return named
    hosts = os.environ.get("MLX_HOSTFILE")
    if hosts:
        first: str = json.loads(Path(hosts).read_text())[0][0]
        return first.rpartition(":")[0]
    coordinator = os.environ.get("MLX_JACCL_COORDINATOR")
    if coordinator:
        return coordinator.rpartition(":")[0]
    return os.environ.get("NCCL_HOST_IP") or socket.gethostname()


def _unreachable(problem: str, error: OSError) -> OSError:
    """Return an error with a remedy."""
    return OSError(
        f"{problem} ({error.strerror or error}): start rank 0 with TINYLLM_DRIVER_ADDRESS=ADDRESS, "
        "an address of its machine that the others reach"
    )


def _rank_of(connection: socket.socket, password: str) -> int | None:
    """Read the rank of a new connection; None if it does not know the password."""
    connection.settimeout(HEARTBEAT_TIMEOUT)
    try:
        with connection.makefile("rb") as lines:
            rank, given = json.loads(lines.readline(_MESSAGE_BYTES))
    except (OSError, ValueError, TypeError):
        return None
    known = isinstance(rank, int) and hmac.compare_digest(str(given), password)
    return rank if known else None
