"""Recovery of an engine from steps that fail, or that Ctrl-C interrupts."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.speculative.drafter import Drafter


class Recovery:
    """Queues the running requests again after a step that has failed, or that was interrupted.

    The contents of all pages are lost then. The requests keep their tokens.

    Attributes:
        is_possible: True with one rank. Several ranks may have stopped at different points of a
            step.
    """

    def __init__(
        self, scheduler: Scheduler, drafter: Drafter | None, pool: PagePool, *, is_possible: bool
    ) -> None:
        """Make the recovery of an engine from its parts."""
        self.is_possible = is_possible
        self._scheduler = scheduler
        self._drafter = drafter
        self._pool = pool
        self._is_interrupted = False  # True until a step, or the restart after it, has ended

    def run_step(self, step: Callable[[], None]) -> None:
        """Call a function that computes a step; after Ctrl-C, restart and raise the interrupt.

        If a second Ctrl-C comes before the requests are queued, the next call queues them.
        """
        self.restart_if_interrupted()
        # Set before the step, because a second Ctrl-C may come as soon as the first is caught.
        self._is_interrupted = self.is_possible
        try:
            step()
        except Exception:
            self._is_interrupted = False
            raise
        except BaseException as error:
            interrupt = error.with_traceback(None)  # the traceback refers to the old pages
        else:
            self._is_interrupted = False
            return
        self.restart_if_interrupted()
        raise interrupt

    def restart_if_interrupted(self) -> None:
        """Restart if Ctrl-C has interrupted a step, or the restart after it."""
        if self._is_interrupted:  # recurrent states may have tokens that no request has counted
            self.requeue_running()
            self._is_interrupted = False

    def requeue_failed_step(self) -> list[RequestState]:
        """Queue the running requests again after a failed step; return those to give up.

        Of several requests that the step served, any may be the reason: they become suspects, which
        `Scheduler.choose_served` serves alone. A request that fails alone twice is given up.
        """
        served = self._scheduler.served  # empty if the step failed before it chose requests
        running = self.requeue_running()
        suspects = [request for request in running if not served or request in served]
        for request in suspects:
            request.is_suspect = True
            request.failures += len(served) < 2
        return [request for request in suspects if request.failures > 1]

    def requeue_running(self) -> list[RequestState]:
        """Queue all running requests again, and make new pages; return these requests.

        A call that Ctrl-C has interrupted can be repeated.
        """
        running = self._scheduler.reset()
        if self._drafter is not None:
            self._drafter.reset()
        self._pool.renew()
        return running


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Handle Ctrl-C after the block instead of in it.

    Python handles signals in the main thread. The block changes nothing in other threads.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[-1])
