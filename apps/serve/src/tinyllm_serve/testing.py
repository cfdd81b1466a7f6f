"""A server in a process of its own, for tests."""

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
    """A server on a port that the system chooses, and its log."""

    def __init__(self, *options: str, ready: bool = True, **environ: str) -> None:
        """Start the server with options of the command line and environment variables.

        With `ready` wait until the model is loaded.
        """
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tinyllm_serve", "--port", "0", *options],
                stderr=log,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **environ},
            )
        try:
            self.url = str(self.wait_for("listening")["url"])
            if ready:
                self.wait_for("ready")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Server":
        """Return the server."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End the server, and delete its log."""
        self.stop()
        self._folder.cleanup()

    def log(self) -> list[Entry]:
        """Return the complete lines of the log so far. The last line may be half written."""
        lines = self._log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def entries(self, event: str, **fields: object) -> list[Entry]:
        """Return the lines of an event that have these fields."""
        wanted = {"event": event, **fields}.items()
        return [entry for entry in self.log() if wanted <= entry.items()]

    def wait_for(self, event: str, seconds: float = 90.0, **fields: object) -> Entry:
        """Wait for a line of an event with these fields, and return the first one.

        Raises:
            RuntimeError: if the process ends, or the time is over.
        """
        deadline = time.monotonic() + seconds
        while not (found := self.entries(event, **fields)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no {event!r} in the log: {self.log()}")
            time.sleep(0.02)
        return found[0]

    def metric(self, name: str) -> float:
        """Return a metric without labels from /metrics, by its name after `tinyllm:`."""
        with urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line.split()[-1] for line in lines if line.startswith(f"tinyllm:{name} ")]
        return float(value)

    def wait_until(self, name: str, value: float, seconds: float = 20.0) -> None:
        """Wait until a metric has a value.

        Raises:
            RuntimeError: if the time is over.
        """
        deadline = time.monotonic() + seconds
        while self.metric(name) != value:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name}: expected {value}, got {self.metric(name)}")
            time.sleep(0.02)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, seconds: float = 30.0) -> int:
        """Wait for the end, and return the exit code; kill the process when the time is over."""
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()
