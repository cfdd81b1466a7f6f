"""`bench serve`: the load, what is counted, and servers that run."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tinyllm_bench.errors import BenchError, UsageError
from tinyllm_bench.serving.figures import Figures
from tinyllm_bench.serving.load import Load
from tinyllm_bench.serving.reply import Reply
from tinyllm_bench.serving.report import draw_figures
from tinyllm_bench.serving.served import Served


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
def test_a_load_that_cannot_be_is_refused(option: str, wrong: float) -> None:
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}: expected"):
        Load(**{option: wrong})


def test_figures_are_those_of_numpy() -> None:
    draw = np.random.default_rng(0)
    replies = []
    for start in range(20):
        pieces = start + np.cumsum(draw.uniform(0.1, 0.5, 30))
        replies.append(Reply(float(start), pieces.tolist(), 10, 4, 30))
    replies.append(Reply(3.0, error="HTTP status 429"))
    figures = Figures.of("ours", replies)
    good = replies[:-1]
    firsts = [reply.pieces[0] - reply.sent for reply in good]
    gaps = np.concatenate([np.diff(reply.pieces) for reply in good])
    assert figures.first_token == pytest.approx(np.percentile(firsts, [50, 95, 99]))
    assert figures.between_tokens == pytest.approx(np.percentile(gaps, [50, 95, 99]))
    seconds = max(reply.pieces[-1] for reply in good)
    assert figures.tokens_per_second == pytest.approx(600 / seconds)
    assert (figures.answered, figures.failed) == (20, 1)
    assert (figures.prompt_tokens, figures.cached_tokens) == (200, 80)


def test_our_server_is_measured(
    bench: Callable[[str], tuple[int, str, str]], tmp_path: Path
) -> None:
    image = tmp_path / "load.png"
    code, out, _ = bench(
        "serve --requests 6 --rate 50 --answer-tokens 8 --prompt-words 80 --shared 0.9 --json "
        f"--plot {image}"
    )
    assert code == 0
    document = json.loads(out)
    (ours,) = document["servers"]
    assert (ours["name"], ours["answered"], ours["failed"]) == ("tinyllm", 6, 0)
    assert ours["cached_tokens"] > 0
    assert ours["tokens_per_second"] > 0
    assert 0 < ours["first_token"][0] <= ours["first_token"][2]
    assert image.stat().st_size > 1000


def test_a_server_that_does_not_come_up_is_named(tmp_path: Path) -> None:
    absent = Served("absent", ["python3", "-c", "raise SystemExit('no such thing')"], "/")
    said = "absent did not start: no such thing"
    with pytest.raises(BenchError, match=said), absent.running(tmp_path / "log"):
        pass


def test_a_plot_needs_no_answers(tmp_path: Path) -> None:
    draw_figures(Load(), [Figures.of("silent", [])], tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").exists()
