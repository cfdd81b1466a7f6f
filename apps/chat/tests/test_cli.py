"""The command line: options, stdin, and a conversation on a pseudo-terminal."""

import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tinyllm_chat import cli, one_shot
from tinyllm_chat.errors import ChatError
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal.output import Terminal
from tinyllm_cli.messages import UsageError

PROCESS = [sys.executable, "-c", "from tinyllm_chat.cli import main; exit(main())"]


@pytest.mark.parametrize(
    "names",
    ["--system-prompt --temperature --max-model-len", "--system --temp --max-context"],
    ids=["standard names", "second names"],
)
def test_every_option_reaches_the_settings(monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    given: list[object] = []

    def record(settings: Settings, question: str, _terminal: Terminal, member: object) -> None:
        given.extend([settings, question, member])

    system, temperature, max_model_len = names.split()
    options = (
        f"--model m --revision r --ops reference --dtype float16 {system} s --max-tokens 2 "
        f"{temperature} 0.5 --top-k 3 --top-p 0.6 --min-p 0.7 --repetition-penalty 1.5 --seed 4 "
        f"--stop a --stop b --kv-bits 8 {max_model_len} 9 --reasoning-effort low "
        "--draft-model mtp --num-speculative-tokens 3 --prompt q --json"
    )
    monkeypatch.setattr(sys, "argv", ["chat", *options.split()])
    monkeypatch.setattr(one_shot, "run", record)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert cli.main() == 0
    settings = Settings(
        prompt="q",
        as_json=True,
        model="m",
        revision="r",
        ops="reference",
        dtype="float16",
        system="s",
        max_tokens=2,
        temperature=0.5,
        top_k=3,
        top_p=0.6,
        min_p=0.7,
        repetition_penalty=1.5,
        seed=4,
        stop=["a", "b"],
        kv_bits=8,
        max_model_len=9,
        draft_model="mtp",
        num_speculative_tokens=3,
        reasoning_effort="low",
    )
    assert given == [settings, "q", None]


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ("--server http://a --api-key k", {}, "k"),
        ("--server http://a", {"TINYLLM_API_KEY": "k"}, "k"),
        ("", {"TINYLLM_API_KEY": "k"}, None),
    ],
)
def test_the_api_key_is_that_of_a_server(
    monkeypatch: pytest.MonkeyPatch, options: str, environ: dict[str, str], expected: str | None
) -> None:
    """The variable alone is no mistake, because `serve` reads it too."""
    given: list[Settings] = []
    monkeypatch.setattr(one_shot, "run", lambda settings, *_, **__: given.append(settings))
    monkeypatch.setattr(sys, "argv", ["chat", "--prompt", "q", *options.split()])
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert cli.main() == 0
    assert [settings.api_key for settings in given] == [expected]


@pytest.mark.parametrize(
    ("prompt", "stdin", "question"),
    [
        ("Sum it up:", b"a text\nof lines\n", "Sum it up:\n\na text\nof lines"),
        ("hi", b"", "hi"),
        ("hi", None, "hi"),
        (None, b"\xef\xbb\xbfhi\r\n", "hi"),
        (None, "日本 🙂".encode(), "日本 🙂"),
    ],
)
def test_the_text_of_stdin_follows_the_prompt(
    make_screen: Callable[..., io.StringIO], prompt: str | None, stdin: bytes | None, question: str
) -> None:
    terminal = Terminal(make_screen(), make_screen(), {})
    read_stdin = None if stdin is None else io.BytesIO(stdin).read
    assert one_shot.read_question(prompt, read_stdin, terminal) == question


def test_endless_input_is_refused(
    make_screen: Callable[..., io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_shot, "MAX_STDIN_BYTES", 1000)
    terminal = Terminal(make_screen(), make_screen(), {})
    with Path("/dev/zero").open("rb") as endless, pytest.raises(ChatError, match="1,000 bytes"):
        one_shot.read_question(None, endless.read, terminal)
    with pytest.raises(UsageError, match="empty"):
        one_shot.read_question(" ", io.BytesIO(b"\n").read, terminal)


class TerminalProcess:
    """A `chat` process on a pseudo-terminal of 20 columns."""

    def __init__(self, arguments: list[str], folder: Path, **environ: str) -> None:
        self._fd, child_fd = pty.openpty()
        fcntl.ioctl(child_fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
        environ = {"TERM": "xterm", "XDG_STATE_HOME": str(folder / "state"), **environ}
        self._process = subprocess.Popen(
            [*PROCESS, *arguments],
            stdin=child_fd,
            stdout=child_fd,
            stderr=child_fd,
            cwd=folder,
            env={**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", **environ},
            start_new_session=True,
        )
        os.close(child_fd)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        """Read until the text appears, with any line breaks in it."""
        start = len(self.shown)
        while text not in " ".join(self.shown[start:].split()) and self._read():
            pass
        assert text in " ".join(self.shown[start:].split())

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def modes(self) -> int:
        """Return the local modes of the terminal: echo, lines, signals of keys."""
        modes: int = termios.tcgetattr(self._fd)[3]
        return modes

    def finish(self) -> int:
        """Read to the end, and return the exit code."""
        while self._read():
            pass
        return self._process.wait(timeout=30)

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def _read(self) -> bool:
        """Read more output; return False at its end or after 30 seconds."""
        try:
            more = os.read(self._fd, 4096) if select.select([self._fd], [], [], 30)[0] else b""
        except OSError:  # on Linux, after the child has closed its side
            more = b""
        self.shown += more.decode(errors="replace")
        return more != b""


@pytest.mark.parametrize(
    ("environ", "dim"),
    [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_gets_a_conversation(
    scripted: str, tmp_path: Path, environ: dict[str, str], dim: bool
) -> None:
    (tmp_path / "pico").symlink_to(
        scripted
    )  # a local folder takes precedence over the built-in model
    with closing(TerminalProcess([], tmp_path, **environ)) as process:
        process.wait_for("/help for help")
        process.type("hi\r")
        process.wait_for("It is so.")
        process.type("/exit\r")
        assert process.finish() == 0
    assert process.shown.count("Qwen/Qwen3-0.6B") == 1
    assert ("\x1b[2mHm." in process.shown) == dim
    assert ("\x1b[2m" in process.shown) == dim
    assert (tmp_path / "state" / "tinyllm" / "chat_history").read_text().endswith("+/exit\n")


def test_json_requires_a_question(tmp_path: Path) -> None:
    with closing(TerminalProcess(["--json"], tmp_path)) as process:
        assert process.finish() == 2
    assert "--json: expected --prompt TEXT" in " ".join(process.shown.split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal(tmp_path: Path, number: signal.Signals) -> None:
    with closing(TerminalProcess([], tmp_path)) as process:
        before = process.modes()
        process.wait_for("/help for help")
        process.wait_for(">")
        assert process.modes() != before
        process.send_signal(number)
        assert process.finish() == 128 + number
        assert process.modes() == before


def test_a_warning_is_one_line() -> None:
    program = (
        "import sys, warnings; from tinyllm_chat import cli, one_shot\n"
        "one_shot.run = lambda *_, **__: warnings.warn('computed as by cpu')\n"
        "sys.exit(cli.main())"
    )
    command = [sys.executable, "-c", program, "--prompt", "hello"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert done.stderr == "chat: computed as by cpu\n"
