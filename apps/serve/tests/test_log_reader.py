"""A reader of the log that stops does not stop the server."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tinyllm_serve.json_log import JsonFormatter, LogWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that holds 64 KiB, which is not read before the test reads it."""
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        with suppress(OSError):
            os.close(end)


def logger_of(writer: int) -> logging.Logger:
    logger = logging.Logger("test")
    handler = LogWriter(writer)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return logger


def read(reader: int) -> list[str]:
    os.set_blocking(reader, False)
    pieces = []
    with suppress(BlockingIOError):
        while piece := os.read(reader, 65536):
            pieces.append(piece)
    return b"".join(pieces).decode().splitlines()


def test_lines_are_dropped_while_the_pipe_is_full(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    logger = logger_of(writer)
    for number in range(2000):  # with a handler that waits, this loop never ends
        logger.warning("line %d %s", number, "x" * 900)
    first = read(reader)
    assert json.loads(first[0])["event"].startswith("line 0 ")
    logger.warning("the last")
    notice, last = (json.loads(line) for line in read(reader) if line)
    assert last["event"] == "the last"
    whole = sum(line.endswith("}") for line in first)
    assert notice == {"event": "log lines were dropped", "lines": 2000 - whole}


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    logger_of(writer).warning("unread")


def test_lines_have_no_control_characters(pipe: tuple[int, int]) -> None:
    """A terminal obeys some, and programs take others for the end of a line."""
    reader, writer = pipe
    text = "\x1b[2J\x9b2J\x7f\x85\u2028\u202e\ud800{}\r\n"
    logger_of(writer).warning("%s", text)
    (line,) = read(reader)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["event"] == text


def test_a_warning_of_python_is_a_line() -> None:
    program = (
        "import warnings; from tinyllm_serve.json_log import configure_log\n"
        "configure_log(); warnings.warn('computed as by cpu')"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["event"]) == ("warning", "computed as by cpu")
