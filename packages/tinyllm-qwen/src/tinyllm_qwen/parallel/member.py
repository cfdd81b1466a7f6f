"""One process of a group that shares a model: how it joins, loads its part, and leaves."""

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Communicator, RankCommunicator
from tinyllm_ops import REFERENCE, OpSet

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.tensor_reader import Progress
from tinyllm_qwen.loader import load
from tinyllm_qwen.malloc_trim import release_free_memory
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.control_channel import ControlChannel, LossCallback
from tinyllm_qwen.parallel.driver import Driver
from tinyllm_qwen.parallel.execute import work
from tinyllm_qwen.parallel.rendezvous import agree, connect
from tinyllm_qwen.parallel.weight_files import comparison
from tinyllm_qwen.partition.split import HEADS, Split
from tinyllm_qwen.text.tokenizer import Tokenizer

JOIN_TIMEOUT = 60
"""Seconds that a rank waits for the other ranks before it gives up."""

_RING_TIMEOUT = 15
"""Seconds after which MLX's ring backend stops trying to connect to the next rank."""

LOSS_TIMEOUT = 2.0
"""Timeout, in seconds, for the control channels to report a lost rank after a failed all-reduce."""

# Variables with the rank of a process, and with the number of ranks: of mlx.launch (or set by
# hand), Open MPI and MPICH. mlx.launch sets the number with NCCL only.
_RANK_VARIABLES = {
    "MLX_RANK": "MLX_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
}

_TIMEOUT_WRITER = "import sys; sys.stdin.readline() and sys.stderr.write(sys.argv[1])"
"""A program that writes its argument to stderr once it has read a line."""


def is_launched() -> bool:
    """Return True if a launcher has started this process, alone or as one of several ranks."""
    return any(os.environ.get(name) for name in _RANK_VARIABLES)


def has_peers() -> bool:
    """Return True if a launcher has started this process as one of several ranks."""
    if _is_hostfile_empty():
        return False
    variables = _RANK_VARIABLES.items()
    return any(os.environ.get(rank) and os.environ.get(size) != "1" for rank, size in variables)


def launched_split(text: str) -> Split:
    """Parse the option `--split` of a program that may be one of several ranks.

    Args:
        text: the value of the option; see `Split.parse`.

    Raises:
        ValueError: if the text is not valid, or asks for a split by layers of a single process.
    """
    split = Split.parse(text)
    if split != HEADS and not has_peers():
        raise ValueError(
            f"--split {split}: expected several processes, got one: start one for each rank, with "
            "mlx.launch for example"
        )
    return split


@dataclass(frozen=True)
class Member:
    """This process as one rank of a group: a context manager that closes the control channels.

    Attributes:
        group: the MLX group of all ranks.
        ranks: the communicator of the group.
        channels: on rank 0, the channels to all other ranks; on another rank, the one channel to
            rank 0.
        split: the division of the model between the ranks.
    """

    group: mx.distributed.Group
    ranks: Communicator
    channels: Sequence[ControlChannel]
    split: Split = HEADS

    @classmethod
    def join(cls, on_loss: LossCallback, split: Split = HEADS) -> "Member | None":
        """Join the group of ranks that the environment variables describe.

        If the other ranks do not join within `JOIN_TIMEOUT` seconds, this process writes a line to
        stderr and ends with exit code 1. Meanwhile a signal with a handler, such as Ctrl-C, ends
        this process as if it had none.

        Args:
            on_loss: a callback for the loss of a rank; see `ControlChannel`.
            split: the division of the model between the ranks.

        Returns:
            The member, or None if this process is the only rank.

        Raises:
            RuntimeError: if the group cannot be made.
            OSError: if the other ranks cannot connect to rank 0: see `connect`.
        """
        if _is_hostfile_empty():
            return None
        with _join_timeout(), _default_signals():
            group = _described_group()
            if group.size() == 1:
                return None
            ranks = RankCommunicator(group)
            # Until the channels are connected, nothing else notices a rank that hangs.
            return cls(group, ranks, connect(ranks, on_loss), split)

    @property
    def is_driver(self) -> bool:
        """True on rank 0, which drives the other ranks."""
        return self.ranks.rank == 0

    def load(
        self,
        path_or_repo: str | Path,
        *,
        ops: OpSet = REFERENCE,
        dtype: mx.Dtype | None = None,
        revision: str | None = None,
        progress: Progress | None = None,
        compare_progress: Progress | None = None,
    ) -> tuple[Qwen, Tokenizer]:
        """Load this rank's part of a model. All ranks must call this method at the same time.

        The ranks compare all bytes of their weight files, except ranks that read the same files on
        one machine.

        Args:
            path_or_repo: the checkpoint, as in `tinyllm_qwen.load`.
            ops: the implementation of the maths, or a `Backend`.
            dtype: the dtype of the floating weights, as in `tinyllm_qwen.load`.
            revision: the branch, tag or commit of a repository.
            progress: a callback with the number of bytes of this rank's part read so far, and of
                all its bytes.
            compare_progress: a callback with the number of bytes compared so far, and of all bytes.
                It is called only if the comparison takes longer than the loading.

        Returns:
            The tokenizer, and this rank's part of the model. Pass the part to `drive` on rank 0,
            and to `work` on the other ranks.

        Raises:
            CheckpointError, HubError: as in `tinyllm_qwen.load`.
            ValueError: as in `tinyllm_qwen.load`, or if another rank loads a different model.
        """
        folder = resolve(path_or_repo, revision)
        with comparison(self.ranks, folder) as weights:
            model, tokenizer = load(
                folder,
                ops=ops,
                dtype=dtype,
                progress=progress,
                group=self.group,
                split=self.split,
            )
            config = blake2b(repr(model.config).encode(), digest_size=6).hexdigest()
            agree(self.ranks, f"model {config} in {model.dtype}, --split {self.split}")
            weights.finish(compare_progress)
        return model, tokenizer

    def drive(self, model: Qwen) -> Driver:
        """Make the model of rank 0, whose passes all ranks compute together."""
        return Driver(model, self.channels)

    def work(self, model: Qwen) -> None:
        """Execute the commands of rank 0 until rank 0 ends; see `parallel.execute.work`.

        Without commands, this rank frees the buffers of its steps, as an idle engine does.
        """
        (channel,) = self.channels
        work(model, channel.received(release_free_memory))

    def await_loss(self) -> None:
        """Wait until a control channel can have reported a lost rank, after a failed computation.

        If a rank is lost, an all-reduce fails at once, but does not name the lost rank. The control
        channel to that rank names it as soon as the system schedules the channel's thread.
        """
        time.sleep(LOSS_TIMEOUT)

    def __enter__(self) -> "Member":
        """Return the member."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        """Close the channels. Without a failure, rank 0 first finishes its running computations.

        After a failure, rank 0 announces no end, so that the other ranks end with an error too.

        Raises:
            RuntimeError: if a computation has failed because rank 0 ended first. The failure is
                the cause of the error.
        """
        failed = isinstance(error, RuntimeError)
        if failed:
            self.await_loss()
        elif isinstance(error, Exception):
            # Other ranks may fail for the same reason. Give them time to report that reason before
            # they notice the end of this process.
            for channel in self.channels:
                channel.ignore_loss()
            time.sleep(LOSS_TIMEOUT)
        if self.is_driver and not failed:
            mx.synchronize()
        for channel in self.channels:
            channel.close(announce=not isinstance(error, Exception))
        if failed and any(channel.ended for channel in self.channels):
            raise RuntimeError(
                "rank 0 ended before the other ranks: see the output of rank 0"
            ) from error


@contextmanager
def _join_timeout() -> Iterator[None]:
    """Write a line to stderr and end this process, if the body takes `JOIN_TIMEOUT` seconds.

    MLX waits without releasing the GIL, so no Python thread could enforce the timeout. faulthandler
    ends the process from a C thread. The traceback that it writes first names no reason. It goes to
    a second process, which writes the line. That process ends with this one, because the traceback
    comes through a pipe.
    """
    rank = next((number for name in _RANK_VARIABLES if (number := os.environ.get(name))), "?")
    line = f"rank {rank}: the other ranks did not join within {JOIN_TIMEOUT} s: are all started"
    line += ", with the same MLX_HOSTFILE?\n" if os.environ.get("MLX_HOSTFILE") else "?\n"
    # A program that embeds Python may have no executable. `cat` reads the traceback and is silent.
    writer_program = [sys.executable, "-ISc", _TIMEOUT_WRITER, line]
    command = writer_program if sys.executable else ["sh", "-c", "cat > /dev/null"]
    # In a session of its own, the second process gets no Ctrl-C of the terminal.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as writer:
        assert writer.stdin is not None
        faulthandler.dump_traceback_later(JOIN_TIMEOUT, exit=True, file=writer.stdin.fileno())
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def _default_signals() -> Iterator[None]:
    """Let signals that have a Python handler end the process, because MLX calls no handler.

    Python calls handlers between two instructions, and only a main thread can change them.
    """
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
            if callable(signal.getsignal(number)):  # not if the signal is ignored
                handlers[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _is_hostfile_empty() -> bool:
    """Return True if MLX_HOSTFILE is empty: mlx.launch has started only one process."""
    path = os.environ.get("MLX_HOSTFILE")
    return path is not None and Path(path).is_file() and not Path(path).read_bytes().strip()


def _check_ring() -> None:
    """Check the variables of MLX's ring, which waits for wrong addresses and crashes without any.

    Raises:
        RuntimeError: if the file of addresses or the number of the rank is wrong.
    """
    path, rank = os.environ.get("MLX_HOSTFILE"), os.environ.get("MLX_RANK", "")
    if path is None:
        return
    try:
        hosts = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise RuntimeError(f"MLX_HOSTFILE: {path} cannot be read as JSON: {error}") from None
    if not (isinstance(hosts, list) and hosts and all(map(_are_addresses, hosts))):
        raise RuntimeError(
            f"MLX_HOSTFILE: {path}: expected addresses with ports for each rank, such as "
            '[["10.0.0.1:40001"], ["10.0.0.2:40001"]]'
        )
    if len(hosts) == 1:  # MLX would wait for a second rank forever
        raise RuntimeError(
            f"MLX_HOSTFILE: {path}: expected addresses of at least two ranks, got one: unset "
            "MLX_HOSTFILE and MLX_RANK to start one process"
        )
    if not (rank.isdecimal() and int(rank) < len(hosts)):
        raise RuntimeError(
            f"MLX_RANK: expected 0 to {len(hosts) - 1}, as {path} says, got {rank!r}"
        )


def _are_addresses(value: object) -> bool:
    """Return True for a list of at least one address such as "10.0.0.1:40001"."""
    if not isinstance(value, list) or not value:
        return False
    ports = [
        re.fullmatch(r".+:(\d{1,5})", each) if isinstance(each, str) else None for each in value
    ]
    return all(port is not None and 0 < int(port[1]) < 1 << 16 for port in ports)


def _described_group() -> mx.distributed.Group:
    """Join the group that the environment variables describe.

    If MLX's ring backend cannot connect, the function tries again, because starting ranks by hand
    on several machines may take longer than MLX waits.

    Raises:
        RuntimeError: if the group cannot be made.
    """
    _check_ring()
    until = time.monotonic() + JOIN_TIMEOUT - _RING_TIMEOUT
    while True:
        try:
            return mx.distributed.init(strict=True)
        except (RuntimeError, ValueError) as error:
            if "Couldn't connect" in str(error) and time.monotonic() < until:
                continue
            raise RuntimeError(
                f"the ranks cannot form a group: {error}. Start all ranks with a launcher, or each "
                "rank with MLX_RANK, counted from 0, and MLX_HOSTFILE, a file of their addresses "
                'such as [["10.0.0.1:40001"], ["10.0.0.2:40001"]]'
            ) from error
