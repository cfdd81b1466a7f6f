"""Several processes that share one model: rank 0 talks to the user, other ranks are workers."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tinyllm_cli.messages import UsageError
from tinyllm_kernels import BackendChoice
from tinyllm_qwen.format_bytes import format_bytes
from tinyllm_qwen.parallel.member import JOIN_TIMEOUT, Member, has_peers, launched_split

from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal.modes import keep_modes
from tinyllm_chat.terminal.output import Terminal

EXIT_RANK_LOST = 1
"""The exit code of a process that has lost another rank."""


@contextmanager
def join_ranks(settings: Settings, terminal: Terminal) -> Iterator[Member | None]:
    """Join the ranks that a launcher has started, and yield this process's membership.

    Yield None if this process is the only one, or with --server.

    Raises:
        RuntimeError: if the launcher's description of the group is wrong.
        UsageError: if `--split` is not valid, or there are no ranks to split a model among.
    """
    try:
        split = launched_split(settings.split)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not has_peers() or settings.server is not None:
        yield None
        return
    terminal.info(f"waiting for the other ranks, {JOIN_TIMEOUT} s at most")
    restore = keep_modes()

    def on_loss(rank: int, reason: str) -> None:
        # This runs in a thread. The main thread may wait for the lost rank forever, so only
        # os._exit can end the process. If this is rank 0, the prompt may have changed the modes of
        # the terminal. A worker, which loses rank 0, does not set them: a shell stops a background
        # process that does.
        if rank != 0:
            restore()
        terminal.notice(f"rank {rank} {reason}: the group ends")
        os._exit(EXIT_RANK_LOST)

    member = Member.join(on_loss, split)
    if member is None:
        yield None
        return
    with member:
        yield member


def run_worker(settings: Settings, terminal: Terminal, member: Member) -> None:
    """Execute the commands of rank 0 until rank 0 ends.

    Raises:
        BackendError, CheckpointError, HubError, ValueError: if the model cannot be loaded.
    """
    # Ctrl-C sends SIGINT to all processes of the terminal. Only rank 0 handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    backend = BackendChoice.choose(settings.ops, settings.dtype)
    bytes_read = 0

    def on_read(_done: int, total: int) -> None:
        nonlocal bytes_read
        bytes_read = total

    model, _ = member.load(
        settings.model,
        ops=backend.ops,
        dtype=backend.dtype,
        revision=settings.revision,
        progress=on_read,
    )
    ranks = member.ranks
    terminal.info(f"rank {ranks.rank} of {ranks.size}: {format_bytes(bytes_read)} of weights read")
    member.work(model)
