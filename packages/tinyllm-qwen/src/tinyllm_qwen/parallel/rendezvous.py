"""How the ranks of a group find each other beside the group itself."""

import hmac
import json
import os
import secrets
import socket
from pathlib import Path
from typing import cast

import mlx.core as mx
from tinyllm_layers import Ranks

from tinyllm_qwen.parallel.line import LIMIT, Line, Loss

_ROOM = 512
"""Letters of what the leader says of itself."""


def meet(ranks: Ranks, lost: Loss) -> list[Line]:
    """Connect rank 0 to each of the others.

    Rank 0 listens where the launcher has said that it is (TINYLLM_LEADER names another address),
    and says so, with a password, through the group, which only its members are in.

    Args:
        ranks: the group.
        lost: what to do when a rank is lost; see `Line`.

    Returns:
        On rank 0 a line to every other rank, by rank; on the others the one to rank 0.

    Raises:
        OSError: if the address is not this machine's, or not to be reached.
    """
    if ranks.rank:
        host, port, password = json.loads(_said(ranks, ""))
        try:
            connection = socket.create_connection((host, port), LIMIT)
        except OSError as error:
            raise _not_met(f"rank 0 is not to be reached at {host}:{port}", error) from error
        connection.sendall(json.dumps([ranks.rank, password]).encode() + b"\n")
        return [Line(connection, 0, lost)]
    password, host = secrets.token_hex(16), _own_host()
    try:
        with socket.create_server((host, 0)) as listening:
            listening.settimeout(LIMIT)
            _said(ranks, json.dumps([*listening.getsockname()[:2], password]))
            found: dict[int, socket.socket] = {}
            while len(found) < ranks.size - 1:
                connection, _ = listening.accept()
                rank = _rank_of(connection, password)
                if rank is None:
                    connection.close()
                else:
                    found[rank] = connection
    except OSError as error:
        raise _not_met(f"the other ranks do not reach rank 0 at {host}", error) from error
    return [Line(connection, rank, lost) for rank, connection in sorted(found.items())]


def agree(ranks: Ranks, fact: str) -> None:
    """Make sure that all ranks say the same.

    Raises:
        ValueError: if one says something else.
    """
    first, *others = [_text(letters) for letters in ranks.stack(_letters(fact))]
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise ValueError(
                f"rank 0 has {first}, rank {rank} {other}: start all ranks with the same options "
                "and the same files"
            )


def _said(ranks: Ranks, text: str) -> str:
    """What the one rank says that says anything."""
    return _text(ranks.sum(_letters(text)))


def _letters(text: str) -> mx.array:
    """A text as numbers of a fixed length."""
    codes = list(text.encode()[:_ROOM])
    return mx.array(codes + [0] * (_ROOM - len(codes)), dtype=mx.int32)


def _text(letters: mx.array) -> str:
    codes = cast(list[int], letters.astype(mx.uint8).tolist())
    return bytes(codes).rstrip(b"\0").decode(errors="replace")


def _own_host() -> str:
    """Where the others reach this machine: what a launcher tells MLX's backends, or its name."""
    named = os.environ.get("TINYLLM_LEADER")
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


def _not_met(what: str, error: OSError) -> OSError:
    """An error that says what to do."""
    return OSError(
        f"{what} ({error.strerror or error}): start rank 0 with TINYLLM_LEADER=ADDRESS, an address "
        "of its machine that the others reach"
    )


def _rank_of(connection: socket.socket, password: str) -> int | None:
    """Whose connection this is, None if it is nobody's of the group."""
    connection.settimeout(LIMIT)
    try:
        with connection.makefile("rb") as lines:
            rank, given = json.loads(lines.readline(_ROOM))
    except (OSError, ValueError, TypeError):
        return None
    known = isinstance(rank, int) and hmac.compare_digest(str(given), password)
    return rank if known else None
