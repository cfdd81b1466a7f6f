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

# A short form of Qwen3's template: it drops the thinking of earlier turns, and
# enable_thinking=false prevents thinking.
TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think></think>' }}{%- endif %}"
)
# Each token is followed by the next one. A prompt ends with "\n", or with "</think>" without
# thinking.
SCRIPT = ["\n", "<think>", "Hm.", "</think>", " It is ", "so.", "<|im_end|>"]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that thinks "Hm." and answers "It is so."."""
    folder = tmp_path_factory.mktemp("models") / "scripted"
    return str(scripted_checkpoint(folder, dict(itertools.pairwise(SCRIPT)), TEMPLATE))


@pytest.fixture(scope="session")
def random(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with random weights, which never ends an answer."""
    return str(random_checkpoint(tmp_path_factory.mktemp("models") / "random", TEMPLATE))


class Screen(io.StringIO, TextIO):
    """A stream in memory that claims to be a terminal or not, with a file descriptor or none."""

    def __init__(self, *, terminal: bool = False, descriptor: int | None = None) -> None:
        super().__init__()
        self._terminal = terminal
        self._descriptor = descriptor

    def fileno(self) -> int:
        return super().fileno() if self._descriptor is None else self._descriptor

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def screen() -> type[Screen]:
    """The class of streams; `terminal=True` makes a terminal."""
    return Screen


class RecordedSession:
    """A session whose output is recorded."""

    def __init__(self, settings: Settings) -> None:
        self.out, self.err = Screen(), Screen()
        self.assistant = LocalAssistant.load(settings)
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
