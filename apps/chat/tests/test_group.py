"""Several processes that share the model: one answers, all end together."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tinyllm_chat import group
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal import Terminal

pytestmark = pytest.mark.exhaustive

PROGRAM = [sys.executable, "-c", "from tinyllm_chat.cli import main; exit(main())"]
Start = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `chat` as two ranks on loopback; the first has a pipe for stdin."""
    with ExitStack() as stack:
        # A process started in a shell's background has Ctrl-C ignored, and hands that down.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        stack.callback(signal.signal, signal.SIGINT, before)

        def run(*arguments: str) -> list[subprocess.Popen[str]]:
            with ExitStack() as sockets:
                held = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "01"]
                hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in held]
            path = tmp_path / "hosts.json"
            path.write_text(json.dumps(hosts))
            environment = {
                **os.environ,
                "MLX_HOSTFILE": str(path),
                "TINYLLM_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
            }
            ranks = []
            for rank in range(2):
                process = subprocess.Popen(
                    [*PROGRAM, *arguments],
                    env={**environment, "MLX_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                stack.callback(process.communicate)
                stack.callback(process.kill)
                ranks.append(process)
            return ranks

        yield run


def ask(rank: subprocess.Popen[str], question: str) -> None:
    """Put a question and wait for the beginning of the answer."""
    assert rank.stdin is not None
    assert rank.stdout is not None
    rank.stdin.write(question + "\n")
    rank.stdin.flush()
    assert rank.stdout.read(4)


def ended(ranks: list[subprocess.Popen[str]], within: float) -> list[str]:
    """What the ranks have said on stderr, once all have ended."""
    until = time.monotonic() + within
    return [rank.communicate(timeout=max(0.1, until - time.monotonic()))[1] for rank in ranks]


def test_lines_of_stdin_are_questions_until_they_end(
    start: Start, chat: Callable[..., subprocess.CompletedProcess[bytes]]
) -> None:
    alone = chat("--max-tokens", "24", "-p", "what is a kv cache?").stdout.decode()
    ranks = start("--max-tokens", "24")
    out, errors = ranks[0].communicate("what is a kv cache?\n\n/model pico\n/stats\n", timeout=60)
    assert out == alone
    assert "chat: /model: several processes share this one" in errors
    assert "1.5 MB of weights on this rank of 2" in errors
    assert "rank 1 of 2: 1.5 MB of weights read" in ended(ranks[1:], 10)[0]
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_ranks_may_have_layers_each(
    start: Start, chat: Callable[..., subprocess.CompletedProcess[bytes]]
) -> None:
    options = ("--max-tokens", "24", "--dtype", "float32", "-p", "what is a kv cache?")
    alone = chat(*options).stdout.decode()
    ranks = start(*options, "--split", "2,4")
    out, errors = ranks[0].communicate(timeout=60)
    assert out == alone, errors
    assert "rank 1 of 2: 1.9 MB" in ended(ranks[1:], 10)[0]
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_a_split_among_nobody_is_refused(
    chat: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    for split, said in (
        ("layers", "expected several processes, got one"),
        ("rows", "expected heads, "),
    ):
        refused = chat("-p", "hello", "--split", split)
        assert refused.returncode == 2
        assert said in refused.stderr.decode()


def test_one_question_is_answered_and_all_leave(start: Start) -> None:
    ranks = start("--max-tokens", "24", "--json", "-p", "what is rope?", "--temp", "0.7")
    out, errors = ranks[0].communicate(timeout=60)
    assert ranks[0].returncode == 0, errors
    assert json.loads(out)["finish_reason"]
    errors = ended(ranks[1:], 10)[0]
    assert ranks[1].returncode == 0, errors


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_dies_ends_the_others(start: Start, random: str, dead: int) -> None:
    ranks = start("--model", random, "--max-tokens", "100000")
    ask(ranks[0], "go")
    ranks[dead].kill()
    errors = ended([ranks[1 - dead]], 10)[0]
    assert ranks[1 - dead].returncode == 1
    assert f"chat: rank {dead} has left: the group ends" in errors


def test_a_rank_that_hangs_ends_the_others(start: Start, random: str) -> None:
    ranks = start("--model", random, "--max-tokens", "100000")
    ask(ranks[0], "go")
    ranks[1].send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    errors = ended(ranks[:1], 20)[0]
    assert ranks[0].returncode == 1
    assert "rank 1 has given no sign of life for 10 s: the group ends" in errors
    assert time.monotonic() - stopped < 15
    ranks[1].send_signal(signal.SIGCONT)
    assert "rank 0 has left" in ended(ranks[1:], 10)[0]


def test_ctrl_c_ends_all(start: Start, random: str) -> None:
    ranks = start("--model", random, "--max-tokens", "100000")
    ask(ranks[0], "go")
    for rank in ranks:  # as a terminal sends it
        rank.send_signal(signal.SIGINT)
    ended(ranks, 20)
    assert ranks[0].returncode == 130


@pytest.mark.parametrize(("lost", "events"), [(0, [1]), (1, ["terminal put back", 1])])
def test_only_rank_0_puts_the_terminal_back(
    lost: int,
    events: list[object],
    screen: Callable[..., io.StringIO],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []

    def join(tell: Callable[[int, str], None], _split: object) -> None:
        tell(lost, "has left")

    monkeypatch.setenv("MLX_RANK", str(1 - lost))
    monkeypatch.setattr(sys, "stdin", screen(terminal=True))
    monkeypatch.setattr(group.termios, "tcgetattr", lambda _file: [])
    monkeypatch.setattr(group.termios, "tcsetattr", lambda *_: done.append("terminal put back"))
    monkeypatch.setattr(group.os, "_exit", done.append)
    monkeypatch.setattr(group.Member, "join", join)
    with group.joined(Settings(), Terminal(screen(), screen(), {})):
        assert done == events
