"""Fixtures: tiny checkpoints, sessions on recorded streams, and `chat` as a process."""

import io
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest
from tinyllm_chat.local.assistant import LocalAssistant
from tinyllm_chat.session import Session
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal.output import Terminal
from tinyllm_qwen.testing import random_checkpoint, scripted_checkpoint

# A short form of Qwen3's template. It renders only the content of earlier turns, not their
# reasoning. If enable_thinking is false, the prompt ends with an empty reasoning.
TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think></think>' }}{%- endif %}"
)
# The scripted model generates the successor of each token. A prompt ends with "\n", so an answer
# begins with "<think>". If thinking is disabled, a prompt ends with "</think>", so an answer begins
# with " It is ".
SCRIPT = ["\n", "<think>", "Hm.", "</think>", " It is ", "so.", "<|im_end|>"]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a checkpoint with the reasoning "Hm." and the answer "It is so."."""
    folder = tmp_path_factory.mktemp("models") / "scripted"
    return str(scripted_checkpoint(folder, dict(itertools.pairwise(SCRIPT)), TEMPLATE))


@pytest.fixture(scope="session")
def efforts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the same checkpoint with a template that knows efforts, and begins with them."""
    folder = tmp_path_factory.mktemp("models") / "efforts"
    template = "{{- reasoning_effort if enable_thinking }}" + TEMPLATE
    return str(scripted_checkpoint(folder, dict(itertools.pairwise(SCRIPT)), template))


@pytest.fixture(scope="session")
def random(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a checkpoint with random weights, which never ends an answer."""
    return str(random_checkpoint(tmp_path_factory.mktemp("models") / "random", TEMPLATE))


class Screen(io.StringIO, TextIO):
    """A stream in memory. `isatty` returns `terminal`, and `fileno` returns `descriptor`."""

    def __init__(self, *, terminal: bool = False, descriptor: int | None = None) -> None:
        super().__init__()
        self._terminal = terminal
        self._descriptor = descriptor

    def fileno(self) -> int:
        return super().fileno() if self._descriptor is None else self._descriptor

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def make_screen() -> type[Screen]:
    """The class of the streams: `make_screen(terminal=True)` makes a terminal."""
    return Screen


class RecordedSession:
    """A session whose output is recorded."""

    def __init__(self, settings: Settings) -> None:
        self.out, self.err = Screen(), Screen()
        self.assistant = LocalAssistant(settings)
        self.session = Session(self.assistant, Terminal(self.out, self.err, {}))


@pytest.fixture
def start() -> Callable[..., RecordedSession]:
    """Start a session with a model and options."""
    return lambda model, **options: RecordedSession(Settings(model=model, **options))


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def chat(tmp_path: Path) -> Run:
    """Run `chat` as a process, by default with an empty stdin."""

    def run(
        *arguments: str, stdin: bytes = b"", **environ: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-c", "from tinyllm_chat.cli import main; exit(main())", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=120,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", **environ},
        )

    return run
