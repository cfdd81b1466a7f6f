"""Several processes that share a model: rank 0 answers, and all end together."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tinyllm_chat.local import ranks as chat_ranks
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal.output import Terminal
from tinyllm_qwen.parallel.member import Member

pytestmark = pytest.mark.exhaustive

PROGRAM = [sys.executable, "-c", "from tinyllm_chat.cli import main; exit(main())"]
Launch = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Launch `chat` as two ranks on loopback; the first has a pipe for stdin."""
    with ExitStack() as stack:

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
    """Ask a question and wait for the beginning of the answer."""
    assert rank.stdin is not None
    assert rank.stdout is not None
    rank.stdin.write(question + "\n")
    rank.stdin.flush()
    assert rank.stdout.read(4)


def wait_for_exit(ranks: list[subprocess.Popen[str]], within: float) -> list[str]:
    """Wait for all ranks, and return the stderr of each."""
    until = time.monotonic() + within
    return [rank.communicate(timeout=max(0.1, until - time.monotonic()))[1] for rank in ranks]


def test_each_line_of_stdin_is_a_question(
    launch: Launch, chat: Callable[..., subprocess.CompletedProcess[bytes]]
) -> None:
    alone = chat("--max-tokens", "24", "-p", "what is a kv cache?").stdout.decode()
    ranks = launch("--max-tokens", "24")
    out, errors = ranks[0].communicate("what is a kv cache?\n\n/model pico\n/stats\n", timeout=60)
    assert out == alone
    assert "chat: /model: several processes share the model" in errors
    assert "1.5 MB of weights on this rank of 2" in errors
    assert "rank 1 of 2: 1.5 MB of weights read" in wait_for_exit(ranks[1:], 10)[0]
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_ranks_may_split_the_layers(
    launch: Launch, chat: Callable[..., subprocess.CompletedProcess[bytes]]
) -> None:
    options = ("--max-tokens", "24", "--dtype", "float32", "-p", "what is a kv cache?")
    alone = chat(*options).stdout.decode()
    ranks = launch(*options, "--split", "2,4")
    out, errors = ranks[0].communicate(timeout=60)
    assert out == alone, errors
    assert "rank 1 of 2: 1.9 MB" in wait_for_exit(ranks[1:], 10)[0]
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_a_split_of_a_single_process_is_refused(
    chat: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    for split, said in (
        ("layers", "expected several processes, got one"),
        ("rows", "expected heads, "),
    ):
        refused = chat("-p", "hello", "--split", split)
        assert refused.returncode == 2
        assert said in refused.stderr.decode()


def test_one_question_is_answered_and_all_ranks_exit(launch: Launch) -> None:
    ranks = launch("--max-tokens", "24", "--json", "-p", "what is rope?", "--temp", "0.7")
    out, errors = ranks[0].communicate(timeout=60)
    assert ranks[0].returncode == 0, errors
    assert json.loads(out)["finish_reason"]
    errors = wait_for_exit(ranks[1:], 10)[0]
    assert ranks[1].returncode == 0, errors


@pytest.mark.parametrize("dead", [0, 1])
def test_a_killed_rank_ends_the_other_rank(launch: Launch, random: str, dead: int) -> None:
    ranks = launch("--model", random, "--max-tokens", "100000")
    ask(ranks[0], "go")
    ranks[dead].kill()
    errors = wait_for_exit([ranks[1 - dead]], 10)[0]
    assert ranks[1 - dead].returncode == 1
    assert f"chat: rank {dead} has left: the group ends" in errors


def test_a_stopped_rank_ends_the_other_rank(launch: Launch, random: str) -> None:
    ranks = launch("--model", random, "--max-tokens", "100000")
    ask(ranks[0], "go")
    ranks[1].send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    errors = wait_for_exit(ranks[:1], 20)[0]
    assert ranks[0].returncode == 1
    assert "rank 1 has given no sign of life for 10 s: the group ends" in errors
    assert time.monotonic() - stopped < 15
    ranks[1].send_signal(signal.SIGCONT)
    assert "rank 0 has left" in wait_for_exit(ranks[1:], 10)[0]


def test_ctrl_c_ends_all_ranks(launch: Launch, random: str) -> None:
    ranks = launch("--model", random, "--max-tokens", "100000")
    ask(ranks[0], "go")
    for rank in ranks:  # as a terminal sends it
        rank.send_signal(signal.SIGINT)
    wait_for_exit(ranks, 20)
    assert ranks[0].returncode == 130


@pytest.mark.parametrize(("lost", "events"), [(0, [1]), (1, ["terminal restored", 1])])
def test_only_rank_0_restores_the_terminal(
    lost: int,
    events: list[object],
    make_screen: Callable[..., io.StringIO],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []

    def join(on_loss: Callable[[int, str], None], _split: object) -> None:
        on_loss(lost, "has left")

    monkeypatch.setenv("MLX_RANK", str(1 - lost))
    monkeypatch.setattr(sys, "stdin", make_screen(terminal=True))
    monkeypatch.setattr(termios, "tcgetattr", lambda _file: [])
    monkeypatch.setattr(termios, "tcsetattr", lambda *_: done.append("terminal restored"))
    monkeypatch.setattr(os, "_exit", done.append)
    monkeypatch.setattr(Member, "join", join)
    with chat_ranks.join_ranks(Settings(), Terminal(make_screen(), make_screen(), {})):
        assert done == events
