"""Progress of a run on stderr, if stderr is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_line(steps: int | None = None) -> Iterator[Callable[[str, int], None]]:
    """Show one line that is redrawn, and remove it at the end. Without a terminal, do nothing.

    The context yields a function that sets the name of the current step and the finished steps.
    """
    console = Console(stderr=True)
    line = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not sys.stderr.isatty() or console.is_dumb_terminal,
    )
    task = line.add_task("", total=steps)
    with line:
        yield lambda name, finished: line.update(task, description=name, completed=finished)
