"""`bench batch` on the built-in shape: figures that hang together."""

import json
import sys

import pytest
from tinyllm_bench import cli


def test_batches_and_a_long_prompt_are_timed_in_the_engine_and_over_http(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--requests", "1", "--requests", "3", "--tokens", "12", "--rounds", "2", "--http"]
    command = ["bench", "batch", *options, "--prompt", "1500", "--dtype", "float32", "--json"]
    monkeypatch.setattr(sys, "argv", command)
    assert cli.main() == 0
    document = json.loads(capsys.readouterr().out)
    for name in ("engine", "over HTTP"):
        found, company = document[name]["batches"], document[name]["company"]
        assert [batch["requests"] for batch in found] == [1, 1, 3, 3]
        assert company["prompt_tokens"] == 1500
        assert company["gaps"]
        # Who decodes beside the prompt gets its tokens while the prompt is computed, not before.
        assert sum(company["gaps"]) <= company["prompt_seconds"]
    for batch in document["engine"]["batches"]:
        steps = len(batch["gaps"])
        assert steps >= 12
        assert batch["tokens_per_second"] <= steps * batch["requests"] / sum(batch["gaps"])
    for batch in document["over HTTP"]["batches"]:
        assert 0 < len(batch["gaps"]) <= 11 * batch["requests"]
        assert batch["tokens_per_second"] > 0


def test_a_wrong_shape_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "batch", "--shape", "gpt-5"])
    assert cli.main() == 2
    assert "gpt-5" in capsys.readouterr().err
