"""Several processes that share the model: one serves, the others compute with it."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tinyllm_engine import AsyncEngine
from tinyllm_kernels import Arithmetic
from tinyllm_qwen.parallel.member import JOINING, Member, is_launched, launched_split

from tinyllm_serve.errors import UsageError
from tinyllm_serve.json_log import announce
from tinyllm_serve.served import FAREWELL
from tinyllm_serve.settings import Settings

LOST = 1
"""The exit code of a process that has lost another one."""

_log = logging.getLogger(__name__)


@dataclass
class Loss:
    """What comes of the loss of another rank: clients are told, and the process ends.

    Attributes:
        engine: whose requests are to fail first; None while there cannot be any.
    """

    engine: AsyncEngine | None = None

    def __call__(self, rank: int, why: str) -> None:
        """End, from a thread of the line to that rank."""
        reason = f"rank {rank} {why}: the group ends"
        _log.error(reason)
        if self.engine is not None:
            self.engine.fail(reason)
            time.sleep(FAREWELL)
        # The model may wait for that rank for ever, in a thread that nothing can end but this.
        os._exit(LOST)


@dataclass(frozen=True)
class Group:
    """The processes that share the model, as one of them sees them.

    Attributes:
        member: this process.
        loss: what it does when it loses another one.
    """

    member: Member
    loss: Loss = field(default_factory=Loss)


@contextmanager
def joined(settings: Settings) -> Iterator[Group | None]:
    """Be a member of the group that a launcher has started, if there is one.

    Raises:
        RuntimeError: if the launcher's description of the group is wrong.
        UsageError: if an option does not go with several processes, or with one.
    """
    try:
        split = launched_split(settings.split)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not is_launched():
        yield None
        return
    if settings.prefix_path is not None:
        raise UsageError(
            "--prefix-path: expected none where the process is one of several: each has a part of "
            "every page, and the file would have that of rank 0 alone"
        )
    announce("joining", seconds=JOINING)
    loss = Loss()
    member = Member.join(loss, split)
    if member is None:
        yield None
        return
    with member:
        yield Group(member, loss)


def check_alone(option: str) -> None:
    """Raise UsageError for an option that does not go with several processes, if there are."""
    if is_launched():
        raise UsageError(f"{option}: expected one process, but a launcher has started several")


def follow(settings: Settings, member: Member) -> None:
    """Compute with rank 0 until it ends.

    Raises:
        BackendError, CheckpointError, HubError, ValueError: if the model cannot be loaded.
        RuntimeError: if another rank is lost in the middle of a sum.
    """
    # A terminal sends Ctrl-C to all processes, and whoever ends a service SIGTERM: the answers
    # under way need this one until rank 0 has finished them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    arithmetic = Arithmetic.choose(settings.ops, settings.dtype)
    model, _ = member.load(
        settings.model,
        ops=arithmetic.ops,
        dtype=arithmetic.dtype,
        revision=settings.revision,
    )
    ranks = member.ranks
    announce("following", rank=ranks.rank, ranks=ranks.size, weight_bytes=model.nbytes)
    member.follow(model)
    announce("ended")
