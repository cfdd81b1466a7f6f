"""`bench engine`: many requests at once."""

import json
from collections.abc import Callable

import pytest
from tinyllm_bench.serving.engine import BatchResult, EngineTarget

Bench = Callable[[str], tuple[int, str, str]]
OPTIONS = "--requests 1 --requests 3 --tokens 12 --rounds 2 --prompt 1500 --dtype float32"


def test_batches_and_a_long_prompt_are_timed(bench: Bench) -> None:
    code, out, err = bench(f"engine {OPTIONS} --json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    batches, prompt = document["engine"]["batches"], document["engine"]["long_prompt"]
    assert [batch["requests"] for batch in batches] == [1, 1, 3, 3]
    for batch in batches:
        steps = len(batch["gaps"])
        assert steps >= 12
        assert 0 < batch["tokens_per_second"] <= steps * batch["requests"] / sum(batch["gaps"])
    assert prompt["prompt_tokens"] == 1500
    # The other request gets tokens while the prompt is computed, not before.
    assert 0 < sum(prompt["gaps"]) <= prompt["prompt_seconds"]


def test_the_table_has_a_row_for_each_number_of_requests(bench: Bench) -> None:
    code, out, _ = bench("engine --requests 2 --requests 4 --tokens 4 --rounds 1 --prompt 300")
    rows = [line.split() for line in out.splitlines() if line.startswith("engine")]
    assert code == 0
    assert [row[1] for row in rows] == ["2", "4", "300"]
    assert float(rows[0][3]) == pytest.approx(2.0)  # times the rate of one request


@pytest.mark.parametrize(("finished", "rows"), [(0, []), (1, ["1"]), (3, ["1", "3"])])
def test_ctrl_c_shows_what_was_measured_by_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, finished: int, rows: list[str]
) -> None:
    calls = iter(range(finished + 1))  # with the warm-up

    def batch(_target: EngineTarget, requests: int, _tokens: int, _seed: int = 0) -> BatchResult:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return BatchResult(requests, 10.0 * requests, (0.1,))

    monkeypatch.setattr(EngineTarget, "batch", batch)
    code, out, err = bench(f"engine {OPTIONS}")
    assert code == 130
    assert err == "bench: interrupted: the remaining measurements are missing\n"
    lines = [line.split() for line in out.splitlines() if line.startswith("engine")]
    assert [line[1] for line in lines] == rows
    assert "during a long prompt" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--requests 0", "'--requests'"),
        ("--prompt -5", "'--prompt'"),
        ("--prompt 999999", "--prompt: expected from 0 to 2047"),
        ("--tokens 5000", "--tokens: expected from 1 to 2014"),
        ("--ops foo", "--ops: "),
    ],
)
def test_a_number_out_of_range_is_a_usage_error(bench: Bench, options: str, message: str) -> None:
    code, out, err = bench(f"engine {options}")
    assert (code, out) == (2, "")
    assert message in err


def test_an_unknown_shape_is_named(bench: Bench) -> None:
    code, _, err = bench("engine --shape gpt-5")
    assert code == 2
    assert "gpt-5" in err
