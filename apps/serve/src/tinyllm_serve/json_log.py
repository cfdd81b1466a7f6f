"""The log: one JSON object a line, on stderr."""

import json
import logging
import os
import sys
import traceback
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from select import PIPE_BUF, select

MAX_FRAMES = 12
"""The most frames of each end of a traceback in a line."""

MAX_CHARACTERS = 1000
"""The most characters of a text in a line."""

MAX_LIST = 64
"""The most items of a list in a line."""

_log = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """Format a record as JSON: the message as "event", and the fields of `extra`.

    For an exception, the line has the type and the traceback. The exception's message is left out,
    because it may hold a part of a conversation.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": _bounded(record.getMessage()),
        }
        fields = vars(record).get("fields")
        if isinstance(fields, dict):
            entry |= {name: _bounded(value) for name, value in fields.items()}
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            entry["error"] = kind.__name__
            frames = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(trace)
            ]
            # The first frames tell the endpoint, and the last ones the fault. A traceback of a
            # RecursionError has a thousand frames between them, 91 kB.
            cut = len(frames) > 2 * MAX_FRAMES
            entry["at"] = [*frames[:MAX_FRAMES], "...", *frames[-MAX_FRAMES:]] if cut else frames
        return json.dumps(entry)  # in ASCII: a terminal obeys some control characters beyond it


class LogWriter(logging.Handler):
    """Write lines to a file descriptor, and drop the lines that would have to wait.

    A reader of the log that has stopped, such as a full pipe or a terminal after Ctrl-S, would
    otherwise stop the event loop and all streams. The next line after dropped lines has their
    number.
    """

    def __init__(self, descriptor: int) -> None:
        """Write to a descriptor. It stays in the mode in which other processes use it."""
        super().__init__()
        self._descriptor = descriptor
        self._dropped = 0
        self._cut = False  # True if the latest line was written in part

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it as dropped."""
        line = f"{self.format(record)}\n"
        if self._dropped:
            line = f'{{"event": "log lines were dropped", "lines": {self._dropped}}}\n{line}'
        data = line.encode()
        if self._cut:
            data = b"\n" + data
        written = self._write(data)
        self._cut = 0 < written < len(data) or (self._cut and not written)
        self._dropped = 0 if written == len(data) else self._dropped + 1

    def _write(self, data: bytes) -> int:
        """Write as many bytes as fit without waiting; return their number."""
        written = 0
        with suppress(OSError):  # the reader has gone
            while written < len(data) and select([], [self._descriptor], [], 0)[1]:
                # A descriptor that is ready takes PIPE_BUF bytes without waiting.
                written += os.write(self._descriptor, data[written : written + PIPE_BUF])
        return written


def configure_log() -> None:
    """Log warnings of all packages, and info messages of this package and the engine."""
    handler = LogWriter(sys.stderr.fileno())
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in (__package__, "tinyllm_engine"):
        logging.getLogger(name).setLevel(logging.INFO)
    # Text between the lines would not be JSON.
    warnings.showwarning = lambda message, *_place: _log.warning(str(message))


def log_event(event: str, **fields: str | int | float | None) -> None:
    """Log an event with all fields that are not None."""
    present = {name: value for name, value in fields.items() if value is not None}
    _log.info(event, extra={"fields": present})


def _bounded(value: object) -> object:
    """Shorten a long text or a long list."""
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        return f"{value[:MAX_CHARACTERS]}..."
    if isinstance(value, list) and len(value) > MAX_LIST:
        return [*value[:MAX_LIST], "..."]
    return value
