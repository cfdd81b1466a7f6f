"""`chat --prompt` and `... | chat` as processes: streams, exit codes and signals."""

import importlib.metadata
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def test_stdout_has_only_the_answer(chat: Run, scripted: str) -> None:
    done = chat("--model", scripted, "--prompt", "hi")
    err = done.stderr.decode()
    assert (done.returncode, done.stdout) == (0, b"It is so.\n")
    assert "Hm." in err
    assert " ops, " in err
    assert "first token" in err
    assert "peak" in err
    assert "\x1b" not in err


def test_a_checkpoint_without_an_end_token_is_a_notice(
    chat: Run, scripted: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(scripted, tmp_path / "endless")
    for name in ("config.json", "tokenizer_config.json"):
        fields = json.loads((folder / name).read_text())
        for end in ("eos_token", "eos_token_id"):
            fields.pop(end, None)
        (folder / name).write_text(json.dumps(fields))
    done = chat("--model", str(folder), "--prompt", "hi", "--max-tokens", "4")
    assert done.returncode == 0
    assert b"names no end token (eos_token_id)" in done.stderr
    assert b"no end token" not in chat("--model", scripted, "--prompt", "hi").stderr


def test_json_is_one_complete_record(chat: Run, scripted: str) -> None:
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
    ("arguments", "stdin", "code", "message"),
    [
        (["--prompt", "  "], b"", 2, "the prompt is empty"),
        ([], b" \n", 2, "the prompt is empty"),
        (["--prompt", "hi", "--top-p", "1.5"], b"", 2, "--top-p: expected above 0 and at most 1"),
        (["--prompt", "hi", "--max-tokens", "many"], b"", 2, "--max-tokens"),
        (["--no-such-option"], b"", 2, "--no-such-option"),
        (["--model", "/no/such/folder", "--prompt", "hi"], b"", 1, "/no/such/folder"),
        (["--model", "no/such-model", "--prompt", "hi"], b"", 1, "no/such-model"),
        (["--model", "MODEL", "--revision", "v2", "--prompt", "hi"], b"", 1, "revision"),
        pytest.param(
            *(["--model", "MODEL"], b"a" * 1_000_000, 1, "got 1,000,019: shorten it"),
            id="long stdin",  # pytest's own id would hold the text
        ),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    chat: Run, scripted: str, arguments: list[str], stdin: bytes, code: int, message: str
) -> None:
    done = chat(*[scripted if word == "MODEL" else word for word in arguments], stdin=stdin)
    assert (done.returncode, done.stdout) == (code, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("chat: ")
    assert message in line


def test_invalid_utf8_is_replaced_with_a_notice(chat: Run, scripted: str) -> None:
    done = chat("--model", scripted, stdin=b"caf\xe9?")
    assert (done.returncode, done.stdout) == (0, b"It is so.\n")
    assert "not UTF-8 (byte 3)" in done.stderr.decode()


def test_the_version_is_that_of_the_distribution(chat: Run) -> None:
    done = chat("--version")
    assert done.stdout.decode() == f"chat {importlib.metadata.version('tinyllm-chat')}\n"


def test_help_imports_neither_mlx_nor_prompt_toolkit(chat: Run) -> None:
    done = chat("--help", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.split(b"|")[-1].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert b"--repetition-penalty" in done.stdout
    assert b"tinyllm_chat.settings" in imported
    assert not {b"mlx.core", b"prompt_toolkit", b"rich", b"tokenizers"} & imported


def test_an_api_key_without_a_server_is_a_usage_error(chat: Run) -> None:
    done = chat("--api-key", "secret", "--prompt", "hi")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"chat: --api-key: expected --server URL with it (see chat --help)\n"


def test_a_pipe_closed_early_is_not_an_error(chat: Run, random: str) -> None:
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


def test_ctrl_c_exits_silently_with_130(random: str) -> None:
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
    process.stdout.read(1)  # the answer has begun
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize("closed", ["<&-", "</dev/null >&-", "</dev/null 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_not_an_error(closed: str, scripted: str) -> None:
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


@pytest.mark.parametrize("option", ["--max-model-len", "--max-context"])
def test_a_context_beyond_the_model_own_is_a_notice(chat: Run, scripted: str, option: str) -> None:
    done = chat("--model", scripted, option, "99999999", "--prompt", "hi")
    assert done.returncode == 0
    assert (
        "--max-model-len 99,999,999 has no effect: the model's own context" in done.stderr.decode()
    )
