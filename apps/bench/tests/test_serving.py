"""`bench serve`: loads, statistics, and servers that run."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tinyllm_bench.errors import BenchError
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.models.random_weights import random_weights
from tinyllm_bench.serving import run, server
from tinyllm_bench.serving.client import Reply
from tinyllm_bench.serving.model_files import ModelFiles, write_checkpoint
from tinyllm_bench.serving.options import Load
from tinyllm_bench.serving.run import ServerResult
from tinyllm_bench.serving.server import Server
from tinyllm_bench.settings import Settings
from tinyllm_cli.messages import UsageError
from tinyllm_qwen import Tokenizer, load
from tinyllm_qwen.checkpoint.hub import resolve


def test_arrivals_are_random_and_the_same_again() -> None:
    load = Load(requests=2000, rate=5.0, prompt_words=20, shared=0.5)
    arrivals = load.arrivals()
    assert arrivals == load.arrivals()
    gaps = np.diff([arrival.seconds for arrival in arrivals])
    # Of an exponential distribution the mean and the deviation are the same: 1 / rate.
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1)
    words = [arrival.prompt.split() for arrival in arrivals]
    assert {len(each) for each in words} == {20}
    assert len({tuple(each[:10]) for each in words}) == 1
    assert len({tuple(each) for each in words}) > 1900
    assert {arrival.seconds for arrival in Load(rate=0.0).arrivals()} == {0.0}


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("requests", 0), ("concurrency", 0), ("rate", -1.0), ("shared", 1.5), ("answer_tokens", 0)],
)
def test_an_option_out_of_its_range_is_refused(option: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}: expected"):
        Load(**{option: wrong})


@pytest.mark.parametrize("rate", [-1.0, 1e6])
def test_the_bounds_of_the_rate_are_named(rate: float) -> None:
    bounds = r"expected 0 \(all at once\) or more, and below 1,000,000 a second, got "
    with pytest.raises(UsageError, match=bounds):
        Load(rate=rate)


def test_statistics_are_those_of_numpy() -> None:
    draw = np.random.default_rng(0)
    replies = []
    for start in range(20):
        pieces = start + np.cumsum(draw.uniform(0.1, 0.5, 30))
        replies.append(Reply(float(start), pieces.tolist(), 10, 4, 30))
    replies.append(Reply(3.0, error="HTTP status 429"))
    result = ServerResult.of("ours", 4.0, replies)
    good = replies[:-1]
    firsts = [reply.pieces[0] - reply.sent for reply in good]
    gaps = np.concatenate([np.diff(reply.pieces) for reply in good])
    assert result.first_token == pytest.approx(np.percentile(firsts, [50, 95, 99]))
    assert result.between_tokens == pytest.approx(np.percentile(gaps, [50, 95, 99]))
    seconds = max(reply.pieces[-1] for reply in good)
    assert result.tokens_per_second == pytest.approx(600 / seconds)
    assert (result.answered, result.failed) == (20, 1)
    assert (result.prompt_tokens, result.cached_tokens, result.tokens) == (200, 80, 600)


def test_without_answers_there_are_no_times() -> None:
    silent = ServerResult.of("silent", 4.0, [Reply(0.0, error="HTTP status 429")])
    assert (silent.first_token, silent.between_tokens) == (None, None)
    short = ServerResult.of("short", 4.0, [Reply(0.0, [0.5], tokens=1)])
    assert (short.first_token, short.between_tokens) == ((0.5, 0.5, 0.5), None)


def test_a_table_has_no_times_of_a_server_without_answers(
    bench: Callable[[str], tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", REFUSING.replace("SOME", "False")]
    refusing = Server("refusing", command, "/ready")
    monkeypatch.setattr(server, "find_servers", lambda *_: ([refusing], []))
    code, out, _ = bench("serve --requests 2 --rate 0")
    assert code == 1
    (row,) = (line for line in out.splitlines() if line.startswith("refusing"))
    assert row.split()[-2:] == ["-", "-"]


def test_our_server_is_measured(bench: Callable[[str], tuple[int, str, str]]) -> None:
    code, out, _ = bench(
        "serve --requests 6 --rate 50 --answer-tokens 8 --prompt-words 80 --shared 0.9 --json"
    )
    assert code == 0
    document = json.loads(out)
    (ours,) = document["servers"]
    assert (ours["name"], ours["answered"], ours["failed"]) == ("tinyllm", 6, 0)
    assert ours["cached_tokens"] > 0
    assert ours["tokens_per_second"] > 0
    assert 0 < ours["first_token"][0] <= ours["first_token"][2]


def test_a_server_that_does_not_come_up_is_named(tmp_path: Path) -> None:
    absent = Server("absent", ["python3", "-c", "raise SystemExit('no such thing')"], "/")
    said = "absent did not start: no such thing"
    with pytest.raises(BenchError, match=said), absent.running(tmp_path / "log"):
        pass


def test_a_server_that_is_slow_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOADING_TIMEOUT", 1.0)
    program = "import time; print('loading', flush=True); time.sleep(60)"
    slow = Server("slow", [sys.executable, "-c", program], "/ready")
    said = r"slow is not ready after 1 s \(try a smaller model\): loading"
    with pytest.raises(BenchError, match=said), slow.running(tmp_path / "log"):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_server_too(tmp_path: Path, number: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    slow = f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))"
    program = f"""
import sys
from tinyllm_bench import cli
from tinyllm_bench.serving import server
slow = server.Server("slow", [sys.executable, "-c", {slow + "; time.sleep(60)"!r}], "/ready")
server.find_servers = lambda *_: ([slow], [])
sys.argv = ["bench", "serve"]
sys.exit(cli.main())
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            deadline = time.monotonic() + 60
            while not (pid_file.exists() and pid_file.read_text()):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(30) == 128 + number
        finally:
            process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


REFUSING = """
import http.server, itertools, sys
requests = itertools.count()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        good = SOME and next(requests) % 2
        self.send_response(200 if good else 429)
        self.end_headers()
        if good:
            self.wfile.write(b'data: {"choices": [{"text": "a"}]}\\n\\n')

port = int(sys.argv[-1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.mark.parametrize(("some", "failed", "expected"), [(False, 6, 1), (True, 3, 0)])
def test_requests_that_fail_are_counted_and_no_answer_at_all_is_a_failure(
    bench: Callable[[str], tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    some: bool,
    failed: int,
    expected: int,
) -> None:
    command = [sys.executable, "-c", REFUSING.replace("SOME", str(some))]
    refusing = Server("refusing", command, "/ready")
    monkeypatch.setattr(server, "find_servers", lambda *_: ([refusing], []))
    code, out, err = bench("serve --requests 6 --rate 0 --json")
    assert code == expected
    assert f"bench: refusing: {failed} of 6 requests failed: HTTP status 429 ({failed})\n" in err
    assert json.loads(out)["servers"][0]["answered"] == 6 - failed


def test_a_proxy_of_the_environment_is_not_used(
    bench: Callable[[str], tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LOADING_TIMEOUT", 10.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens at this port
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    command = [sys.executable, "-c", REFUSING.replace("SOME and next(requests) % 2", "True")]
    answering = Server("answering", command, "/ready")
    monkeypatch.setattr(server, "find_servers", lambda *_: ([answering], []))
    code, out, _ = bench("serve --requests 2 --rate 0 --json")
    assert code == 0
    assert json.loads(out)["servers"][0]["answered"] == 2


@pytest.mark.parametrize("answer_tokens", [2, 3])
def test_answers_that_are_shorter_than_requested_are_named(
    bench: Callable[[str], tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    answer_tokens: int,
) -> None:
    async def answer(load: Load, *_: object) -> list[Reply]:
        one = Reply(0.0, [0.1, 0.2], tokens=2)
        return [one, replace(one, tokens=3), Reply(0.0, error="HTTP status 429")]

    monkeypatch.setattr(run, "send", answer)
    command = [sys.executable, "-c", REFUSING]
    monkeypatch.setattr(server, "find_servers", lambda *_: ([Server("one", command, "/")], []))
    _, out, err = bench(f"serve --rate 0 --answer-tokens {answer_tokens} --json")
    document = json.loads(out)
    assert document["servers"][0]["tokens"] == 5
    short = (
        "one: expected 3 tokens in each answer, got 2.5 on average: "
        "do not compare its speed with that of longer answers"
    )
    assert (short in document["notices"]) == (answer_tokens == 3)
    assert (f"bench: {short}\n" in err) == (answer_tokens == 3)


def test_ctrl_c_shows_the_finished_loads(
    bench: Callable[[str], tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(load: Load, *_: object) -> list[Reply]:
        if load.rate == 8:
            raise KeyboardInterrupt
        return [Reply(0.0, [0.1, 0.2], 10, 0, 2)]

    monkeypatch.setattr(run, "send", answer)
    command = [sys.executable, "-c", REFUSING]
    monkeypatch.setattr(server, "find_servers", lambda *_: ([Server("one", command, "/")], []))
    code, out, err = bench("serve --rate 2 --rate 8 --rate 9 --answer-tokens 2 --json")
    assert code == 130
    assert err == "bench: interrupted: the remaining loads were not measured\n"
    assert [each["rate"] for each in json.loads(out)["servers"]] == [2.0]


def test_answers_of_another_form_are_failures_or_have_no_counts(
    bench: Callable[[str], tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four answers: not JSON, deeply nested, choices of another form, counts of another form.
    answers = """[
        b'data: {"choices": [',
        b'data: {"a":' + b'[' * 100_000,
        b'data: {"choices": ["a"], "usage": 7}',
        b'data: {"choices": [{"text": "a"}], "usage": {"prompt_tokens": "x", '
        b'"prompt_tokens_details": [1]}}',
    ][next(requests) % 4]"""
    line = """b'data: {"choices": [{"text": "a"}]}"""
    program = REFUSING.replace("good = SOME and next(requests) % 2", "good = True")
    program = program.replace(f"{line}\\n\\n'", f"{answers} + b'\\n\\n'")
    assert answers in program
    odd = Server("odd", [sys.executable, "-c", program], "/ready")
    monkeypatch.setattr(server, "find_servers", lambda *_: ([odd], []))
    code, out, err = bench("serve --requests 8 --rate 0 --json")
    assert code == 0
    assert "bench: odd: 6 of 8 requests failed: " in err
    assert "a line that is not JSON (4)" in err
    assert json.loads(out)["servers"][0]["answered"] == 2


@pytest.mark.exhaustive
def test_a_shape_is_served_and_its_tokens_are_text(
    bench: Callable[[str], tuple[int, str, str]],
) -> None:
    options = "--requests 2 --answer-tokens 6 --prompt-words 20 --rate 0 --rate 100"
    code, out, err = bench(f"serve --shape pico --bits 8 {options} --json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["model"] == "shape pico, random weights, 8-bit affine, group 64, bfloat16"
    assert [each["rate"] for each in document["servers"]] == [0.0, 100.0]
    for each in document["servers"]:
        assert each["answered"] == 2
        assert each["prompt_tokens"] == 40


def test_a_model_and_a_shape_exclude_each_other(
    bench: Callable[[str], tuple[int, str, str]],
) -> None:
    code, _, err = bench("serve --model pico --shape pico")
    assert code == 2
    assert "--shape: makes a model of its own" in err
    code, _, err = bench("serve --bits 4")
    assert code == 2
    assert "--bits: expected --shape with it" in err
    code, _, err = bench("serve --peer mlx-lm")
    assert code == 2
    assert "--peer: expected --peers with it" in err
    code, _, err = bench("serve --peers --peer ollama")
    assert code == 2
    assert "--peer: expected one of mlx-lm, llama.cpp" in err


def test_a_shape_has_a_checkpoint_and_a_gguf_of_one_tokenizer(tmp_path: Path) -> None:
    files = ModelFiles.of_shape("pico", 4, tmp_path, gguf=True)
    model, tokenizer = load(files.folder)
    assert tokenizer.vocab_size == model.config.vocab_size
    assert files.gguf is not None
    fields = gguf.GGUFReader(files.gguf).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    (prompt,) = {arrival.prompt for arrival in Load(requests=1, prompt_words=30).arrivals()}
    spoken = [tokens[token].replace("\u0120", " ") for token in tokenizer.encode(prompt)]
    assert "".join(spoken) == prompt
    absent = ModelFiles.of_shape("pico", 5, tmp_path / "five", gguf=True)
    assert absent.gguf is None
    assert "not at 5" in absent.without_gguf


def test_a_vocabulary_larger_than_the_tokenizer_is_filled_with_words(tmp_path: Path) -> None:
    settings = Settings(shape="pico", prompt_tokens=4, decode_tokens=2, batch=2)
    model = BenchModel.make(settings)
    larger = replace(model.config, vocab_size=3000)
    wide = BenchModel("wide", {}, larger, random_weights(larger, model.format), model.format)
    tokenizer = Tokenizer.from_folder(write_checkpoint(wide, tmp_path / "wide"))
    assert tokenizer.vocab_size == 3000
    assert tokenizer.decode([2999, 2048]) == " t2999 t2048"
    pico = Tokenizer.from_folder(resolve("pico"))
    said = "the norm of a<|im_end|>"
    assert tokenizer.encode(said) == pico.encode(said)
