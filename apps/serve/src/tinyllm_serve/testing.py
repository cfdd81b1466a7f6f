"""A server as a process of its own, for tests."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

Entry = dict[str, object]


class Server:
    """A server on a port that the system chose, and its log.

    Attributes:
        process: what was started.
        url: where it listens.
    """

    def __init__(self, *options: str, ready: bool = True, **environ: str) -> None:
        """Start one.

        Args:
            options: of the command line.
            ready: whether to wait until the model is loaded.
            environ: of the process, beside this one's.
        """
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tinyllm_serve", "--port", "0", *options],
                stderr=log,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **environ},
            )
        self.url = str(self.wait_for("listening")["url"])
        if ready:
            self.wait_for("ready")

    def __enter__(self) -> "Server":
        """Use it."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End it, and drop its log."""
        self.stop()
        self._folder.cleanup()

    def log(self) -> list[Entry]:
        """The lines so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def entries(self, event: str, **fields: object) -> list[Entry]:
        """The lines of one kind that have these fields."""
        wanted = {"event": event, **fields}.items()
        return [entry for entry in self.log() if wanted <= entry.items()]

    def wait_for(self, event: str, seconds: float = 90.0, **fields: object) -> Entry:
        """Wait for a line of a kind with these fields, and give the first one.

        Raises:
            RuntimeError: if it does not come.
        """
        deadline = time.monotonic() + seconds
        while not (found := self.entries(event, **fields)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no {event!r} in the log: {self.log()}")
            time.sleep(0.02)
        return found[0]

    def metric(self, name: str) -> float:
        """A count from /metrics."""
        with urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line.split()[-1] for line in lines if line.startswith(f"{name} ")]
        return float(value)

    def wait_until(self, name: str, value: float, seconds: float = 20.0) -> None:
        """Wait for a count to become a number.

        Raises:
            RuntimeError: if it does not.
        """
        deadline = time.monotonic() + seconds
        while self.metric(name) != value:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name}: expected {value}, got {self.metric(name)}")
            time.sleep(0.02)

    def stop(self) -> int:
        """Ask it to end, and give its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, seconds: float = 30.0) -> int:
        """Wait for its end, and give the exit code; an end that does not come is forced."""
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()
