"""A bar on stderr, where that is a terminal."""

import os
import sys
from types import TracebackType

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
    """Call it with the bytes that are done and all of them; leave the context to remove it."""

    def __init__(self) -> None:
        """Make a bar that appears with the first call."""
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
        """Show that `done` of `total` bytes are done."""
        if not self._progress.tasks:
            self._progress.add_task("", total=total)
            self._progress.start()  # not before: a download has bars of its own
        self._progress.update(self._progress.task_ids[0], completed=done)

    def __enter__(self) -> "ProgressBar":
        """Begin."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        self._progress.stop()
