"""The end of a launcher shows in the pipe that it holds open."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tinyllm_serve.ranks import launcher
from tinyllm_serve.ranks.launcher import is_closed, launcher_pipe, wait_until_closed


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The two ends of a pipe, the first of which is the stdin of a rank. A test may remove one."""
    ends = list(os.pipe())
    monkeypatch.setattr(launcher, "STDIN", ends[0])
    monkeypatch.setattr(launcher, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("MLX_RANK", "0")
    yield ends
    for end in ends:
        os.close(end)


def test_the_end_of_the_launcher_is_noticed(ends: list[int]) -> None:
    async def wait() -> None:
        pipe = launcher_pipe()
        assert pipe == ends[0]
        os.write(ends[1], b"text that nothing reads\n")
        waiting = asyncio.create_task(wait_until_closed(pipe))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        os.close(ends.pop())
        await asyncio.wait_for(waiting, 5)
        assert os.read(pipe, 100) == b"text that nothing reads\n"

    asyncio.run(wait())


def test_a_pipe_that_is_closed_at_the_start_is_not_watched(ends: list[int]) -> None:
    os.close(ends.pop())
    assert is_closed(ends[0])
    assert launcher_pipe() is None


def test_other_processes_have_no_launcher(ends: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLX_RANK")
    assert launcher_pipe() is None


def test_a_rank_that_was_started_by_hand_has_no_launcher(
    ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(os.devnull).open() as nowhere:
        monkeypatch.setattr(launcher, "STDIN", nowhere.fileno())
        assert launcher_pipe() is None
    monkeypatch.setattr(launcher, "STDIN", 1 << 20)  # as if stdin were closed
    assert launcher_pipe() is None
