"""Several processes that share the model: rank 0 serves, the other ranks are workers."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tinyllm_cli.messages import UsageError
from tinyllm_engine import AsyncEngine
from tinyllm_kernels import BackendChoice
from tinyllm_qwen.parallel.member import JOIN_TIMEOUT, Member, has_peers, launched_split

from tinyllm_serve.json_log import log_event
from tinyllm_serve.served_model import FAILURE_GRACE_SECONDS
from tinyllm_serve.settings import Settings
from tinyllm_serve.signals import ENDING, IGNORED, OF_TERMINAL

LOST_RANK_EXIT_CODE = 1
"""The exit code of a process after another rank is lost."""

CLOSE_TIMEOUT = 4.0
"""Seconds that rank 0 may take to end after a second signal: longer than most steps, and less than
the 10 after which a rank that hangs is lost, for which a step waits."""

_log = logging.getLogger(__name__)


@dataclass
class LostRankCallback:
    """A callback for a lost rank: it fails the requests and exits the process.

    Attributes:
        engine: the engine whose requests fail; None on workers, and on rank 0 before the model is
            loaded.
    """

    engine: AsyncEngine | None = None

    def __call__(self, rank: int, why: str) -> None:
        """Fail the requests and exit the process. A thread of the control channel calls this.

        Args:
            rank: the lost rank.
            why: a verb phrase, such as "has left".
        """
        reason = f"rank {rank} {why}: the group ends"
        _log.error(reason)
        if self.engine is not None:
            self.engine.fail(reason)
            time.sleep(FAILURE_GRACE_SECONDS)  # until clients have got the reason
        # The model may wait for that rank forever, in a thread that nothing else can end.
        os._exit(LOST_RANK_EXIT_CODE)


@dataclass(frozen=True)
class Group:
    """The group of processes that share the model, as this process sees it.

    Attributes:
        member: this process.
        on_loss: the callback for a lost rank.
    """

    member: Member
    on_loss: LostRankCallback


@contextmanager
def joined(settings: Settings) -> Iterator[Group | None]:
    """Join the group that a launcher has started; yield None if this process is the only one.

    Raises:
        RuntimeError: if the launcher's description of the group is wrong.
        UsageError: if an option is not allowed with several processes, or needs several.
    """
    try:
        split = launched_split(settings.split)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not has_peers():
        yield None
        return
    if settings.prefix_cache_path is not None:
        raise UsageError(
            "--prefix-cache-path: expected none with several processes: each has a part of every "
            "page, and the file would hold the part of rank 0 alone"
        )
    log_event("joining the group", timeout=JOIN_TIMEOUT)
    on_loss = LostRankCallback()
    member = Member.join(on_loss, split)
    if member is None:  # the launcher has started only one process
        yield None
        return
    with member:
        yield Group(member, on_loss)


def check_alone(option: str) -> None:
    """Raise UsageError for an option that needs one process, if a launcher has started several."""
    if has_peers():
        raise UsageError(f"{option}: expected one process, but a launcher has started several")


def work(settings: Settings, member: Member) -> None:
    """Execute the commands of rank 0 until rank 0 ends.

    Raises:
        BackendError, CheckpointError, HubError, ValueError: if the model cannot be loaded.
        RuntimeError: if another rank is lost in the middle of an all-reduce.
    """
    # A terminal sends Ctrl-C to all processes, and a service manager may send SIGTERM to all. The
    # requests in progress need this process until rank 0 has finished them.
    for number in (*ENDING, *OF_TERMINAL, *IGNORED):
        signal.signal(number, signal.SIG_IGN)
    backend = BackendChoice.choose(settings.ops, settings.dtype)
    model, _ = member.load(
        settings.model, ops=backend.ops, dtype=backend.dtype, revision=settings.revision
    )
    ranks = member.ranks
    facts = {"rank": ranks.rank, "ranks": ranks.size, "weight_bytes": model.nbytes}
    log_event("worker ready", pid=os.getpid(), **facts)
    member.work(model)
    log_event("ended")
