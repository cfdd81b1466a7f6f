"""Detection of the end of `mlx.launch`, which does not end the ranks that it has started."""

import asyncio
import os
import select
import stat

POLL_SECONDS = 1.0
"""Seconds between two checks."""

STDIN = 0
"""The descriptor of stdin."""


def launcher_pipe() -> int | None:
    """Return the descriptor of the pipe that `mlx.launch` holds open while it runs, or None.

    The pipe is the stdin of a rank. The system closes it when the launcher ends, by any signal. The
    parent of this process would say less: it may be `uv run`, which stays, or a shell, which may
    end while `nohup` keeps a rank that was started by hand. Open MPI sets no MLX_RANK. It closes
    stdin early.
    """
    if not os.environ.get("MLX_RANK"):
        return None
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(STDIN).st_mode)
    except OSError:  # stdin is closed
        return None
    return STDIN if is_pipe and not is_closed(STDIN) else None


def is_closed(pipe: int) -> bool:
    """Return True if no process can write to the pipe any more. Nothing is read from it."""
    poll = select.poll()
    poll.register(pipe, select.POLLHUP)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


async def wait_until_closed(pipe: int) -> None:
    """Wait until no process can write to the pipe any more."""
    # Not with a reader of the event loop: the launcher passes on what a terminal sends, and this
    # text, which nothing reads, would wake the loop again and again.
    while not is_closed(pipe):
        await asyncio.sleep(POLL_SECONDS)
