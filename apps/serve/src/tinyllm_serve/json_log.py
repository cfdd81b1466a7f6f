"""The log: one JSON object a line, on stderr."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

_log = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """Writes a record's message as "event", and the fields that it was given beside it.

    Of an exception it writes the type and where it came from. What it says is left out: that may
    be a part of somebody's conversation.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        fields = vars(record).get("fields")
        if isinstance(fields, dict):
            entry |= fields
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            entry["error"] = kind.__name__
            entry["at"] = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(trace)
            ]
        return json.dumps(entry, ensure_ascii=False)


def begin_log() -> None:
    """Send everything of this process to the log, from warnings up; our own from info up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for ours in (__package__, "tinyllm_engine"):
        logging.getLogger(ours).setLevel(logging.INFO)


def announce(event: str, **fields: str | float | None) -> None:
    """Tell the log of an event, with those fields that are not None."""
    told = {name: value for name, value in fields.items() if value is not None}
    _log.info(event, extra={"fields": told})
