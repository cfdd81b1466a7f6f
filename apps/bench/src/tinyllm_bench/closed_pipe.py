"""A reader of stdout that has seen enough."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closed_pipe_is_no_error() -> Iterator[None]:
    """End in good order where the reader has closed the pipe.

    For the inside of a command, since typer would make a failure of it.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes both streams once more when it exits, and would complain.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
