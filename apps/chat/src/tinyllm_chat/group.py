"""Several processes that share the model: rank 0 talks to the user, the others are workers."""

import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from tinyllm_kernels import Arithmetic
from tinyllm_qwen.parallel.member import JOIN_TIMEOUT, Member, is_launched, launched_split

from tinyllm_chat.errors import UsageError
from tinyllm_chat.settings import Settings
from tinyllm_chat.size import size
from tinyllm_chat.terminal import Terminal

LOST = 1
"""The exit code of a process that has lost another rank."""


@contextmanager
def joined(settings: Settings, terminal: Terminal) -> Iterator[Member | None]:
    """Join the group that a launcher has started, if there is one and the model runs here.

    Raises:
        RuntimeError: if the launcher's description of the group is wrong.
        UsageError: if `--split` is not understood, or there are no ranks to split a model among.
    """
    try:
        split = launched_split(settings.split)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not is_launched() or settings.server is not None:
        yield None
        return
    terminal.aside(f"waiting for the other ranks, {JOIN_TIMEOUT} s at most")
    before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None

    def lost(rank: int, why: str) -> None:
        # From a thread, while the model may wait for that rank forever: there is no other way out.
        # On rank 0 the prompt may have set the terminal to a mode of its own. Workers, which lose
        # rank 0, leave the terminal alone: a shell stops a background process that changes it.
        if before is not None and rank != 0:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        terminal.notice(f"rank {rank} {why}: the group ends")
        os._exit(LOST)

    member = Member.join(lost, split)
    if member is None:
        yield None
        return
    with member:
        yield member


def work(settings: Settings, terminal: Terminal, member: Member) -> None:
    """Execute the commands of rank 0 until it ends.

    Raises:
        CheckpointError, HubError, ValueError: as `Assistant.load`.
    """
    # Ctrl-C on a terminal reaches all processes there: rank 0 alone acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    backend = Arithmetic.choose(settings.ops, settings.dtype)
    read = 0

    def count(_done: int, total: int) -> None:
        nonlocal read
        read = total

    model, _ = member.load(
        settings.model,
        ops=backend.ops,
        dtype=backend.dtype,
        revision=settings.revision,
        progress=count,
    )
    ranks = member.ranks
    terminal.aside(f"rank {ranks.rank} of {ranks.size}: {size(read)} of weights read")
    member.work(model)
