"""The ranks that share the memory of a machine, or of a GPU."""

import socket
import uuid
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Communicator

from tinyllm_qwen.free_memory import free_memory
from tinyllm_qwen.tolist import ints

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class LocalRanks:
    """The ranks that share the memory of this process: of its machine, or of its GPU.

    Attributes:
        ranks: their numbers, ascending, with the number of this process.
        free: the least number of free bytes that one of them found, before any of them goes on.
    """

    ranks: tuple[int, ...]
    free: int


def local_ranks(ranks: Communicator) -> LocalRanks:
    """Find the ranks that share memory. All ranks must call this function at the same time."""
    memory = f"{machine_name()} {mx.device_info().get('uuid')}"  # a GPU of NVIDIA has its own
    machine = blake2b(memory.encode(), digest_size=_NUMBER_BYTES).digest()
    found = exchanged(ranks, machine + max(0, free_memory()).to_bytes(_NUMBER_BYTES))
    same_machine = {rank: data for rank, data in enumerate(found) if data.startswith(machine)}
    free = min(int.from_bytes(data[_NUMBER_BYTES:]) for data in same_machine.values())
    return LocalRanks(tuple(same_machine), free)


def machine_name() -> str:
    """Return a text unique to this machine: the boot id of Linux, or name and network address."""
    try:
        return _BOOT_ID.read_text()
    except OSError:  # not Linux
        return f"{socket.gethostname()} {uuid.getnode()}"


def exchanged(ranks: Communicator, data: bytes) -> list[bytes]:
    """Return the data of all ranks, in the order of ranks. All data must have the same length."""
    rows = ranks.all_gather(mx.array(list(data), dtype=mx.int32))
    return [bytes(ints(row)) for row in rows]
