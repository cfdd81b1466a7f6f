"""Several processes that share the model: rank 0 serves, the other ranks are workers."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tinyllm_engine import AsyncEngine
from tinyllm_kernels import Arithmetic
from tinyllm_qwen.parallel.member import JOIN_TIMEOUT, Member, is_launched, launched_split

from tinyllm_serve.errors import UsageError
from tinyllm_serve.json_log import log_event
from tinyllm_serve.server import FAILED_SECONDS
from tinyllm_serve.settings import Settings

LOST = 1
"""The exit code of a process that has lost another rank."""

_log = logging.getLogger(__name__)


@dataclass
class Loss:
    """The callback for a lost rank: it fails the requests and ends the process.

    Attributes:
        engine: the engine with the requests; None while there are none.
    """

    engine: AsyncEngine | None = None

    def __call__(self, rank: int, why: str) -> None:
        """End, from a thread of the control channel to that rank."""
        reason = f"rank {rank} {why}: the group ends"
        _log.error(reason)
        if self.engine is not None:
            self.engine.fail(reason)
            time.sleep(FAILED_SECONDS)
        # The model may wait for that rank forever, in a thread that nothing else can end.
        os._exit(LOST)


@dataclass(frozen=True)
class Group:
    """This process among several that share the model, and its callback for a lost rank."""

    member: Member
    loss: Loss = field(default_factory=Loss)


@contextmanager
def joined(settings: Settings) -> Iterator[Group | None]:
    """Join the group that a launcher has started; yield None if there is none.

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
    if settings.prefix_cache_path is not None:
        raise UsageError(
            "--prefix-cache-path: expected none with several processes: each has a part of every "
            "page, and the file would hold the part of rank 0 alone"
        )
    log_event("joining the group", timeout=JOIN_TIMEOUT)
    loss = Loss()
    member = Member.join(loss, split)
    if member is None:
        yield None
        return
    with member:
        yield Group(member, loss)


def check_alone(option: str) -> None:
    """Raise UsageError for an option that needs one process, if a launcher has started several."""
    if is_launched():
        raise UsageError(f"{option}: expected one process, but a launcher has started several")


def work(settings: Settings, member: Member) -> None:
    """Execute the commands of rank 0 until it ends.

    Raises:
        BackendError, CheckpointError, HubError, ValueError: if the model cannot be loaded.
        RuntimeError: if another rank is lost in the middle of an all-reduce.
    """
    # A terminal sends Ctrl-C to all processes, and a service manager may send SIGTERM to all. The
    # requests in progress need this process until rank 0 has finished them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    arithmetic = Arithmetic.choose(settings.ops, settings.dtype)
    model, _ = member.load(
        settings.model, ops=arithmetic.ops, dtype=arithmetic.dtype, revision=settings.revision
    )
    ranks = member.ranks
    log_event("worker ready", rank=ranks.rank, ranks=ranks.size, weight_bytes=model.nbytes)
    member.work(model)
    log_event("ended")
