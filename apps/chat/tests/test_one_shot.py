"""`chat --prompt` and `... | chat` as processes: streams and exit codes."""

import importlib.metadata
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def test_the_answer_alone_is_on_stdout_and_the_rest_on_stderr(chat: Run, scripted: str) -> None:
    done = chat("--model", scripted, "--prompt", "hi")
    err = done.stderr.decode()
    assert (done.returncode, done.stdout) == (0, b"It is so.\n")
    assert "Hm." in err
    assert " ops, " in err
    assert "first token" in err
    assert "peak" in err
    assert "\x1b" not in err


def test_json_is_one_record_with_everything_in_it(chat: Run, scripted: str) -> None:

    done = chat("--model", scripted, "--json", "--seed", "5", stdin=b"hi\n")
    record = json.loads(done.stdout)
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""
    assert (record["answer"], record["reasoning"]) == ("It is so.", "Hm.")
    assert (record["finish_reason"], record["model"], record["seed"]) == ("stop", scripted, 5)
    prompt = len("user\nhi\nassistant\n") + 3
    assert record["tokens"] == {"prompt": prompt, "cached": 0, "generated": 6}
    assert record["timings"]["first_token_seconds"] > 0
    assert record["peak_memory_bytes"] > 0
    assert record["ops"] in ("cpu", "mlx")


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "says"),
    [
        (["--prompt", "  "], b"", 2, "the prompt is empty"),
        ([], b" \n", 2, "the prompt is empty"),
        (["--prompt", "hi", "--top-p", "1.5"], b"", 2, "--top-p: expected above 0 and at most 1"),
        (["--prompt", "hi", "--max-tokens", "many"], b"", 2, "--max-tokens"),
        (["--no-such-option"], b"", 2, "--no-such-option"),
        (["--model", "/no/such/folder", "--prompt", "hi"], b"", 1, "/no/such/folder"),
        (["--model", "no/such-model", "--prompt", "hi"], b"", 1, "no/such-model"),
        (["--model", "MODEL", "--revision", "v2", "--prompt", "hi"], b"", 1, "revision"),
        (["--model", "MODEL"], b"a" * 1_000_000, 1, "1,000,019 tokens"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    chat: Run, scripted: str, arguments: list[str], stdin: bytes, code: int, says: str
) -> None:
    done = chat(*[scripted if word == "MODEL" else word for word in arguments], stdin=stdin)
    assert (done.returncode, done.stdout) == (code, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("chat: ")
    assert says in line


def test_bytes_that_are_not_utf8_are_replaced_with_a_notice(chat: Run, scripted: str) -> None:
    done = chat("--model", scripted, stdin=b"caf\xe9?")
    assert (done.returncode, done.stdout) == (0, b"It is so.\n")
    assert "not UTF-8 (byte 3)" in done.stderr.decode()


def test_the_version_is_the_distributions(chat: Run) -> None:
    done = chat("--version")
    assert done.stdout.decode() == f"chat {importlib.metadata.version('tinyllm-chat')}\n"


def test_help_and_a_usage_error_load_neither_mlx_nor_prompt_toolkit(chat: Run) -> None:
    done = chat("--help", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.split(b"|")[-1].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert b"--repetition-penalty" in done.stdout
    assert b"tinyllm_chat.settings" in imported
    assert not {b"mlx.core", b"prompt_toolkit", b"rich", b"tokenizers"} & imported


def test_a_reader_that_leaves_is_no_failure(chat: Run, random: str) -> None:
    command = f"{sys.executable} -c 'from tinyllm_chat.cli import main; exit(main())'"
    command += f" --model {random} --prompt hi --max-tokens 300"
    pipeline = f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", pipeline],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0
    assert len(done.stdout) == 1
    assert b"rror" not in done.stderr


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children hear Ctrl-C, also where a shell that runs the tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_control_c_ends_it_quietly_with_130(random: str, interruptible: None) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from tinyllm_chat.cli import main; exit(main())"),
            *("--model", random, "--prompt", "hi", "--max-tokens", "900"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(1)  # it has begun to answer
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize("closed", ["<&-", "</dev/null >&-", "</dev/null 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_failure(closed: str, scripted: str) -> None:
    command = f"{sys.executable} -c 'from tinyllm_chat.cli import main; exit(main())'"
    done = subprocess.run(
        ["bash", "-c", f"{command} --model {scripted} --prompt hi {closed}"],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0
    assert done.stdout == (b"" if ">&-" in closed.replace("2>&-", "") else b"It is so.\n")
    assert b"rror" not in done.stderr


def test_a_context_beyond_the_models_own_is_said_to_be_bounded(chat: Run, scripted: str) -> None:
    done = chat("--model", scripted, "--max-context", "99999999", "--prompt", "hi")
    assert done.returncode == 0
    assert "--max-context 99,999,999: the model's own context of" in done.stderr.decode()
