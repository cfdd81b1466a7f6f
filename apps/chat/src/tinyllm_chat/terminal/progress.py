"""A progress bar on stderr."""

import time
from typing import TYPE_CHECKING

from tinyllm_chat.terminal.output import Terminal

if TYPE_CHECKING:
    import rich.progress

_DELAY = 0.4
"""Seconds before the bar appears. Shorter work does not show a bar or import rich."""


class ProgressBar:
    """A progress callback. The bar appears after a delay; leaving the context removes it."""

    def __init__(self, label: str, terminal: Terminal) -> None:
        """Prepare a bar. It is shown only if stderr is a terminal that can redraw a line."""
        self._label = label
        self._terminal = terminal
        self._started = time.perf_counter()
        self._bar: rich.progress.Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        """Show the progress, if the delay has passed.

        Args:
            done: the work done so far.
            total: the total work, in the same unit.
        """
        if self._bar is None:
            late = time.perf_counter() - self._started > _DELAY
            if not late or done >= total or not self._terminal.animated:
                return
            self._bar = self._make()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def __enter__(self) -> "ProgressBar":
        """Return the bar."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self.close()

    def close(self) -> None:
        """Remove the bar if it is shown."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _make(self) -> "rich.progress.Progress":
        from rich.console import Console  # imported here, because it takes 0.1 s
        from rich.progress import Progress, TextColumn

        console = Console(file=self._terminal.err)
        # Without markup, because the name of a model may have brackets.
        label = TextColumn("{task.description}", style="progress.description", markup=False)
        columns = (label, *Progress.get_default_columns()[1:])
        bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
        bar.add_task(self._label, total=None)
        bar.start()
        return bar
