"""Signals reach the server in every state of the event loop."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from subprocess import PIPE, Popen
from typing import Literal

import pytest
from tinyllm_serve.signals import ENDING, IGNORED, OF_TERMINAL, Signals


def stall(loop: asyncio.AbstractEventLoop, number: int) -> None:
    """Stall the loop as the engine does in a long step: its thread wakes the loop many times."""

    def wake() -> None:
        for _ in range(20_000):  # some 300 fill the pipe
            loop.call_soon_threadsafe(int)

    thread = threading.Thread(target=wake)
    thread.start()
    thread.join()
    os.kill(os.getpid(), number)


@pytest.fixture
def heeded(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal that is not ignored. A shell ignores some for programs in the background."""
    number: int = request.param
    before = signal.signal(number, signal.SIG_DFL)
    yield number
    signal.signal(number, before)


@pytest.mark.parametrize("heeded", [*ENDING, *OF_TERMINAL], indirect=True)
def test_a_signal_during_a_stall_is_not_lost(heeded: int) -> None:
    async def wait() -> Literal[True]:
        with Signals() as signals:
            stall(asyncio.get_running_loop(), heeded)
            await asyncio.wait_for(signals.first.wait(), 5)
            assert not signals.second.is_set()
            os.kill(os.getpid(), heeded)
            return await asyncio.wait_for(signals.second.wait(), 5)

    assert asyncio.run(wait())


def test_two_signals_in_a_stall_count_as_two() -> None:
    async def wait() -> None:
        with Signals() as signals:
            stall(asyncio.get_running_loop(), signal.SIGTERM)
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(signals.second.wait(), 5)

    asyncio.run(wait())


def test_a_signal_wakes_an_idle_loop() -> None:
    async def wait() -> float:
        with Signals() as signals:
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
            start = time.monotonic()
            timer.start()
            await signals.first.wait()
            return time.monotonic() - start

    assert asyncio.run(wait()) < 5


@pytest.mark.parametrize("number", IGNORED)
def test_signals_of_other_programs_have_no_effect(number: int) -> None:
    async def wait() -> bool:
        with Signals() as signals:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            return signals.first.is_set()

    assert not asyncio.run(wait())


def test_the_handlers_from_before_are_restored() -> None:
    numbers = [*ENDING, *OF_TERMINAL, *IGNORED]
    before = [signal.getsignal(number) for number in numbers]

    async def enter() -> None:
        with Signals():
            pass

    asyncio.run(enter())
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_interpreter_exits_changes_nothing(number: signal.Signals) -> None:
    program = (
        "import atexit, time\n"
        "from tinyllm_serve.cli import run_process\n"
        "atexit.register(lambda: (print('exits', flush=True), time.sleep(0.5)))\n"
        "run_process()\n"
    )
    command = [sys.executable, "-c", program, "--version"]
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line == "exits\n" for line in process.stdout)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
