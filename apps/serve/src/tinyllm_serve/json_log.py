"""The log: one JSON object a line, on stderr."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

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


def configure_log() -> None:
    """Log warnings of all packages, and info messages of this package and the engine."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in (__package__, "tinyllm_engine"):
        logging.getLogger(name).setLevel(logging.INFO)


def log_event(event: str, **fields: str | float | None) -> None:
    """Log an event with all fields that are not None."""
    present = {name: value for name, value in fields.items() if value is not None}
    _log.info(event, extra={"fields": present})
