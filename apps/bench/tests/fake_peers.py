"""Peers for tests, which child processes import by name."""

import os
import signal
import threading
import time
from pathlib import Path

from tinyllm_bench.cases.whole_model import LocalRunner


class LoggingPeer(LocalRunner):
    """Peer that writes its name and process id to a file for each call."""

    def __init__(self, name: str, log: Path) -> None:
        self._name, self._log = name, log

    def prefill(self) -> None:
        self.decode(1)

    def rewind(self) -> None:
        time.sleep(0.05)  # longer than a call, so that a test sees if the time includes it

    def decode(self, tokens: int) -> None:
        with self._log.open("a") as log:
            log.write(f"{self._name} {os.getpid()}\n")
        time.sleep(0.001 * tokens)


class PollingPeer(LoggingPeer):
    """Peer with a thread that polls for 0.1 s after each call, and then writes to the file."""

    def decode(self, tokens: int) -> None:
        threading.Thread(target=self._poll).start()

    def _poll(self) -> None:
        end = time.perf_counter() + 0.1
        while time.perf_counter() < end:
            pass
        super().decode(0)


class FailingPeer(LocalRunner):
    """Peer that reads prompts, and fails in one of several ways when it decodes or loads."""

    def __init__(self, failure: str) -> None:
        self._failure = failure
        if failure == "exit while loading":
            os._exit(3)

    def prefill(self) -> None:
        pass

    def rewind(self) -> None:
        pass

    def decode(self, tokens: int) -> None:
        match self._failure:
            case "segmentation fault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exception":
                raise ValueError(f"no kernel for {tokens} token")
            case "hang":
                time.sleep(60)
