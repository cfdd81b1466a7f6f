"""The rendezvous of a group, in which rank 0 opens a control channel to each other rank."""

import hmac
import json
import os
import secrets
import socket
import time
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Communicator

from tinyllm_qwen.parallel.control_channel import HEARTBEAT_TIMEOUT, ControlChannel, LossCallback
from tinyllm_qwen.tolist import ints

_HELLO_TIMEOUT = 2.0
"""Seconds in which a new connection must send its rank and the password."""

_MESSAGE_BYTES = 512
"""The length of a text that ranks exchange through the group, padded with zeros."""


def connect(ranks: Communicator, on_loss: LossCallback) -> list[ControlChannel]:
    """Connect rank 0 to each of the other ranks.

    Rank 0 listens at the address of the environment variable TINYLLM_DRIVER_ADDRESS, or else at the
    address that the launcher has set. Rank 0 sends the address, the port and a password through
    the group, so that only the ranks can read them.

    Args:
        ranks: the group.
        on_loss: a callback for the loss of a rank; see `ControlChannel`.

    Returns:
        On rank 0, a channel to every other rank, in the order of ranks. On every other rank, the
        channel to rank 0.

    Raises:
        RuntimeError: if rank 0 runs another version, or knows of other ranks.
        OSError: if rank 0 cannot listen at the address, or another rank cannot reach it.
    """
    if ranks.rank:
        try:
            host, port, password = json.loads(_broadcast(ranks, ""))
        except ValueError:
            raise RuntimeError(
                "rank 0 has sent no address: start all ranks with the same version and the same "
                "addresses in MLX_HOSTFILE"
            ) from None
        try:
            connection = socket.create_connection((host, port), HEARTBEAT_TIMEOUT)
        except OSError as error:
            raise _unreachable(f"rank 0 cannot be reached at {host}:{port}", error) from error
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
        raise _unreachable(f"not all ranks connected to rank 0 at {host}", error) from error
    return [ControlChannel(connection, rank, on_loss) for rank, connection in sorted(found.items())]


def agree(ranks: Communicator, fact: str) -> None:
    """Check that all ranks call this function with equal texts.

    Raises:
        ValueError: on every rank, if two texts differ.
    """
    first, *others = [_text(codes) for codes in ranks.all_gather(_codes(fact))]
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise ValueError(
                f"rank {rank}: expected {first}, as on rank 0, got {other}: start all ranks with "
                "the same options and the same files"
            )


def _broadcast(ranks: Communicator, text: str) -> str:
    """Return the text of rank 0. Other ranks must pass "", because `all_reduce` sums all texts."""
    return _text(ranks.all_reduce(_codes(text)))


def _codes(text: str) -> mx.array:
    """Encode a text as an array of `_MESSAGE_BYTES` numbers."""
    codes = list(text.encode()[:_MESSAGE_BYTES])
    return mx.array(codes + [0] * (_MESSAGE_BYTES - len(codes)), dtype=mx.int32)


def _text(codes: mx.array) -> str:
    return bytes(ints(codes.astype(mx.uint8))).rstrip(b"\0").decode(errors="replace")


def _own_host() -> str:
    """Return the address at which other ranks reach this machine.

    Without TINYLLM_DRIVER_ADDRESS, the result is the address that a launcher has set for a
    backend of MLX, or else the name of the machine.
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
    """Return the error for a failed connection, with a remedy."""
    return OSError(
        f"{problem} ({error.strerror or error}): start rank 0 with "
        "TINYLLM_DRIVER_ADDRESS=ADDRESS, an address of that machine that every rank can reach"
    )


def _rank_of(connection: socket.socket, password: str) -> int | None:
    """Read the rank from a new connection; None if its password is wrong or late."""
    until, line = time.monotonic() + _HELLO_TIMEOUT, b""
    try:
        while not line.endswith(b"\n") and len(line) < _MESSAGE_BYTES:
            connection.settimeout(max(until - time.monotonic(), 0.001))
            received = connection.recv(_MESSAGE_BYTES)
            if not received:
                return None
            line += received
        rank, given = json.loads(line)
        known = hmac.compare_digest(str(given).encode(), password.encode())
    except (OSError, ValueError, TypeError):  # not from a rank
        return None
    return rank if known and isinstance(rank, int) else None
