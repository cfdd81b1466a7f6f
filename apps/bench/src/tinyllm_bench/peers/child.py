"""Runner in a child process, so that a peer that crashes does not end the benchmark.

The child stays alive and waits on a pipe. For each round the parent sends one request, and the
child answers with the seconds that it measured, so that the pipe is not part of the time.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from tinyllm_cli.messages import one_line

from tinyllm_bench.cases.whole_model import LocalRunner
from tinyllm_bench.cost import ModelCosts
from tinyllm_bench.errors import PeerError

_TIMEOUT = 900.0  # seconds; a prompt of 8,192 tokens takes minutes on a slow machine

_LONGEST_WAIT = 1.0  # seconds for which the threads of a peer may poll after a measurement


class ChildRunner:
    """A `LocalRunner` in a child process.

    If the child ends, raises an error or does not answer in time, the measurement raises
    `PeerError` with the reason. Every later measurement raises the same error.
    """

    def __init__(
        self,
        name: str,
        costs: ModelCosts,
        make: Callable[[], LocalRunner],
        timeout: float = _TIMEOUT,
    ) -> None:
        """Start the child and wait until it has loaded the model.

        The picklable function `make` makes the runner in the child. Loading and each measurement
        may take `timeout` seconds.
        """
        self.name, self.costs = name, costs
        self._timeout = timeout
        self._failure = ""
        # A forked child would share MLX's threads and locks, and could hang.
        context = multiprocessing.get_context("spawn")
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(
            target=_answer_requests, args=(child_end, make), daemon=True
        )
        self._process.start()
        child_end.close()
        with suppress(PeerError):  # every measurement raises the error again
            self._receive()

    def time_prefill(self, times: int) -> float:
        """See `Runner`."""
        return self._ask("time_prefill", times)

    def time_decode(self, tokens: int) -> float:
        """See `Runner`."""
        return self._ask("time_decode", tokens)

    def close(self) -> None:
        """End the child."""
        self._pipe.close()
        self._process.kill()
        self._process.join()

    def _ask(self, method: str, count: int) -> float:
        if self._failure:
            raise PeerError(self._failure)
        with suppress(OSError):  # if the child has ended, `_receive` finds the reason
            self._pipe.send((method, count))
        return self._receive()

    def _receive(self) -> float:
        try:
            if self._pipe.poll(self._timeout):
                answer = self._pipe.recv()
                if isinstance(answer, float):
                    return answer
                self._failure = str(answer)
            else:
                self._failure = f"no answer for {self._timeout:g} s"
        except (EOFError, OSError):
            self._process.join()
            self._failure = _exit_reason(self._process.exitcode or 0)
        self._process.kill()
        raise PeerError(self._failure)


def _exit_reason(code: int) -> str:
    """Describe the exit code of a process, negative for a signal."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name} ({signal.strsignal(-code)})"
    return f"exited with code {code}"


def _answer_requests(pipe: Connection, make: Callable[[], LocalRunner]) -> None:
    """Make the runner, and answer requests until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, the parent ends its children
    os.dup2(2, 1)  # stdout is for the report of the parent
    try:
        runner = make()
        pipe.send(0.0)
        while True:
            method, count = pipe.recv()
            seconds = getattr(runner, method)(count)
            wait_until_idle()
            pipe.send(seconds)
    except EOFError:
        pass
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {one_line(error)[:300]}")


def wait_until_idle() -> None:
    """Wait until the threads of this process sleep, at most a second.

    The threads of OpenMP poll for 10 ms after the last token of llama.cpp. They would take a core
    from the next contender, which computes 32 tokens of a small model in that time.
    """
    pause = 0.01
    end = time.perf_counter() + _LONGEST_WAIT
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(pause)
        if time.process_time() - used < pause / 10:
            return
