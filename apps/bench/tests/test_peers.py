"""Peers in child processes: interleaved rounds, and failures that do not end a benchmark."""

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tinyllm_bench.cases.whole_model import LocalRunner
from tinyllm_bench.cost import ModelCosts, weight_bytes
from tinyllm_bench.errors import BenchError, PeerError
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.peers import mlx_lm, registry
from tinyllm_bench.peers.child import ChildRunner
from tinyllm_bench.peers.gguf import gguf_type
from tinyllm_bench.rounds import Budget, Contender, Rounds
from tinyllm_bench.settings import Settings

Bench = Callable[[str], tuple[int, str, str]]
Start = Callable[..., ChildRunner]
PROMPT = [5, 900, 31, 7]
QUICK = "--seconds 0.0001 --prompt-tokens 4 --decode-tokens 2 --ops mlx --only model"
REASONS = {
    "exit while loading": "exited with code 3",
    "segmentation fault": "ended by SIGSEGV (Segmentation fault)",
    "exception": "ValueError: no kernel for 1 token",
    "hang": "no answer for 2 s",
}


@pytest.fixture
def start(pico: BenchModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start children that can import the peers of `fake_peers`, and end them after the test."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    costs = ModelCosts(pico.config, weight_bytes(pico.weights), 4)
    children = []

    def make(name: str, runner: Callable[[], LocalRunner]) -> ChildRunner:
        children.append(ChildRunner(name, costs, runner, 60.0))
        return children[-1]

    yield make
    for child in children:
        child.close()


def fake(kind: str, *arguments: object) -> Callable[[], LocalRunner]:
    import fake_peers

    return partial(getattr(fake_peers, kind), *arguments)


def test_children_stay_alive_and_take_turns(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    children = [start(name, fake("LoggingPeer", name, log)) for name in ("a", "b")]
    contenders = [Contender(child.name, child.time_decode) for child in children]
    rounds = Rounds(contenders, Budget(10.0, samples=4, calls=1))
    rounds.run()
    calls = [line.split() for line in log.read_text().splitlines()]
    assert [name for name, _ in calls] == [*"aabb", *"ababab"]  # a warm-up, then in turns
    assert len({pid for _, pid in calls}) == 2
    assert str(os.getpid()) not in {pid for _, pid in calls}
    for samples in rounds.samples.values():
        assert min(samples.seconds) >= 0.001
        assert samples.median < 0.05  # without `rewind`


def test_a_child_answers_when_its_threads_sleep(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = start("a", fake("PollingPeer", "a", log))
    assert child.time_decode(1) < 0.1
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("failure", REASONS)
def test_a_peer_that_fails_is_a_row_with_the_reason(
    bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    def start_failing(*_: object) -> ChildRunner:
        child = start("mlx-lm", fake("FailingPeer", failure))
        if failure == "hang":
            child._timeout = 2.0  # after loading, which may take longer
        return child

    monkeypatch.setattr(registry, "_start", start_failing)
    code, out, err = bench(f"{QUICK} --peers --peer mlx-lm --json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    loads = failure != "exit while loading"
    measured = {(row["regime"], row["by"]) for row in document["results"]}
    assert measured >= {("prefill", "mlx"), ("decode", "mlx")}
    assert (("prefill", "mlx-lm") in measured) == loads
    failed = {(row["regime"], row["by"]): row["reason"] for row in document["failures"]}
    assert failed == {
        (regime, "mlx-lm"): REASONS[failure]
        for regime in (("decode",) if loads else ("prefill", "decode"))
    }


def test_a_failed_peer_is_a_line_of_the_table(
    bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = fake("FailingPeer", "segmentation fault")
    monkeypatch.setattr(registry, "_start", lambda *_: start("mlx-lm", make))
    code, out, _ = bench(f"{QUICK} --peers --peer mlx-lm")
    assert code == 0
    (place,) = (i for i, line in enumerate(out.splitlines()) if "failed:" in line)
    # The reason is wrapped, in the column of the case.
    row = out.splitlines()[place : place + 5]
    assert "mlx-lm" in row[0]
    assert "SIGSEGV" in " ".join(row)
    assert any(line.startswith("decode, after 4") for line in out.splitlines()[:place])


def test_a_child_that_is_killed_between_rounds_is_a_failure(start: Start, tmp_path: Path) -> None:
    child = start("a", fake("LoggingPeer", "a", tmp_path / "log"))
    assert child.time_decode(2) >= 0.002
    assert child._process.pid is not None
    os.kill(child._process.pid, signal.SIGKILL)
    for _ in range(2):  # and again in every later measurement
        with pytest.raises(PeerError, match=r"ended by SIGKILL \(Killed\)"):
            child.time_decode(2)


@pytest.mark.skipif(importlib.util.find_spec("mlx_lm") is None, reason="needs mlx-lm")
def test_mlx_lm_is_measured_in_a_child(bench: Bench) -> None:
    code, out, err = bench(f"{QUICK} --peers --json")
    assert code == 0
    document = json.loads(out)
    assert {row["by"] for row in document["results"]} >= {"mlx", "mlx-lm"}
    # Both have the same weights and number of tokens, so the same cost.
    costs = {
        (row["regime"], row["bytes"])
        for row in document["results"]
        if row["by"] in ("mlx", "mlx-lm") and row["calls_per_sample"] == 1
    }
    assert len({regime for regime, _ in costs}) == len(costs)
    absent = importlib.util.find_spec("llama_cpp") is None
    without_openvino = importlib.util.find_spec("openvino") is None
    names = {row["by"] for row in [*document["results"], *document["failures"]]}
    assert any(name.startswith("llama.cpp") for name in names) != absent
    assert len(document["notices"]) == absent + without_openvino
    assert ("llama-cpp-python is not installed" in err) == absent


def test_the_cost_of_llama_cpp_is_that_of_its_file(
    pico: BenchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "check_installed", lambda *_: None)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    settings = Settings(peers=True, peer=["llama.cpp"], prompt_tokens=4, context=6)
    (child,), notices = registry.find_peers(pico, settings, PROMPT, tmp_path)
    child.close()
    assert (child.name, notices) == ("llama.cpp Q4_0", [])
    # Of 32 numbers 18 bytes, where ours have 20 of float32 scales; keys are of 16 bits.
    matrices = 5_246_976 - (6 * (2 * 256 + 2 * 64) + 256)
    keys = 2 * 6 * 2 * 64 * (6 + 1) * 2
    vectors = 4 * (6 * 640 + 256)
    assert (
        child.costs.decode(settings.context_tokens + 1).bytes
        == matrices * 18 // 32 + vectors + keys
    )


@pytest.mark.parametrize("missing", ["mlx_lm", "llama_cpp", "gguf", "openvino"])
def test_a_peer_that_is_not_installed_is_a_notice(
    pico: BenchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else object()
    )
    peer = {"mlx_lm": "mlx-lm", "openvino": "openvino"}.get(missing, "llama.cpp")
    settings = Settings(peers=True, peer=[peer], prompt_tokens=4)
    runners, (notice,) = registry.find_peers(pico, settings, PROMPT, tmp_path)
    assert runners == []
    assert notice.startswith("--peers: ")
    assert "is not installed" in notice


def test_widths_without_a_type_in_llama_cpp_are_refused() -> None:
    with pytest.raises(BenchError, match="compared at 4, 8, 16 bits, not at 6"):
        gguf_type(6)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_mlx_lm_computes_in_the_dtype_of_our_model(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(ops=["cpu"], dtype=dtype, peers=True, peer=["mlx-lm"])
    made: list[Callable[[], LocalRunner]] = []

    class NotStarted(ChildRunner):
        def __init__(self, _name: str, _costs: ModelCosts, make: Callable[[], LocalRunner]) -> None:
            made.append(make)

    models: list[BenchModel] = []
    monkeypatch.setattr(registry, "check_installed", lambda *_: None)
    monkeypatch.setattr(registry, "ChildRunner", NotStarted)
    monkeypatch.setattr(
        mlx_lm.MlxLmRunner, "__init__", lambda _self, model, *_: models.append(model)
    )
    model = BenchModel.make(settings)
    registry.find_peers(model, settings, PROMPT, tmp_path)
    made[0]()
    assert models[0].format == model.format
