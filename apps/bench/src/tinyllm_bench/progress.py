"""How far a run is, on stderr, where somebody looks."""

import os
import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ProgressLine:
    """One line that is redrawn, and goes when the context is left; nothing without a terminal."""

    def __init__(self) -> None:
        """Look at stderr."""
        shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not shown,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> "ProgressLine":
        """Show it."""
        self._bar.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        """Remove it."""
        self._bar.stop()

    def expect(self, steps: int) -> None:
        """So many steps are ahead."""
        self._bar.update(self._task, total=steps, completed=0)

    def begin(self, what: str) -> None:
        """A step begins."""
        self._bar.update(self._task, description=what)

    def reach(self, place: float) -> None:
        """So many steps are behind."""
        self._bar.update(self._task, completed=round(place))

    def end(self) -> None:
        """It is done."""
        self._bar.advance(self._task)
