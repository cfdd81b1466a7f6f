"""A progress bar on stderr, if stderr is a terminal."""

import os
import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class ProgressBar:
    """A progress callback. Leaving the context removes the bar."""

    def __init__(self) -> None:
        """Prepare a bar. The first call shows it."""
        self._progress = Progress(
            TextColumn("converting"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            disable=not sys.stderr.isatty() or os.environ.get("TERM") == "dumb",
        )

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are converted."""
        if not self._progress.tasks:
            self._progress.add_task("", total=total)
            self._progress.start()  # not earlier, because a download shows its own bars
        self._progress.update(self._progress.task_ids[0], completed=done)

    def __enter__(self) -> "ProgressBar":
        """Return the bar."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._progress.stop()
