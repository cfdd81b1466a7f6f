"""Tiny checkpoints: one that says what a script has it say, and one of random weights."""

import io
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest
from tinyllm_chat.assistant import Assistant
from tinyllm_chat.session import Session
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal import Terminal
from tinyllm_qwen.testing import random_checkpoint, scripted_checkpoint

# Qwen3's in short: thinking of earlier turns is dropped, and enable_thinking=false forestalls it.
TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think></think>' }}{%- endif %}"
)
# After this token comes that one; the last of a prompt is "\n", or "</think>" without thinking.
SCRIPT = ["\n", "<think>", "Hm.", "</think>", " It is ", "so.", "<|im_end|>"]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that thinks "Hm." and answers "It is so."."""
    folder = tmp_path_factory.mktemp("models") / "scripted"
    return str(scripted_checkpoint(folder, dict(itertools.pairwise(SCRIPT)), TEMPLATE))


@pytest.fixture(scope="session")
def random(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that says letters without end."""
    return str(random_checkpoint(tmp_path_factory.mktemp("models") / "random", TEMPLATE))


class Screen(io.StringIO, TextIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def screen() -> type[Screen]:
    """Make a stream; `terminal` says whether it is one."""
    return Screen


class Talk:
    """A session, and what it wrote."""

    def __init__(self, settings: Settings) -> None:
        self.out, self.err = Screen(), Screen()
        self.assistant = Assistant.load(settings)
        self.session = Session(self.assistant, Terminal(self.out, self.err, {}))


@pytest.fixture
def talk() -> Callable[..., Talk]:
    """Start a session with a model and options."""
    return lambda model, **options: Talk(Settings(model=model, **options))


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def chat(tmp_path: Path) -> Run:
    """Run `chat` as a process, with nothing on stdin unless told."""

    def run(*arguments: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", "from tinyllm_chat.cli import main; exit(main())", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=120,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", **environ},
        )

    return run
