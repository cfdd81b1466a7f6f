"""`bench batch` on the built-in shape: figures that hang together."""

import json
import sys

import pytest
from tinyllm_bench import cli


def test_batches_and_a_long_prompt_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--requests", "1", "--requests", "3", "--tokens", "4", "--rounds", "2"]
    command = ["bench", "batch", *options, "--prompt", "300", "--dtype", "float32", "--json"]
    monkeypatch.setattr(sys, "argv", command)
    assert cli.main() == 0
    document = json.loads(capsys.readouterr().out)
    assert [batch["requests"] for batch in document["batches"]] == [1, 1, 3, 3]
    for batch in document["batches"]:
        steps = len(batch["gaps"])
        assert steps >= 4
        assert batch["tokens_per_second"] <= steps * batch["requests"] / sum(batch["gaps"])
    assert document["company"]["prompt_tokens"] == 300
    assert document["company"]["gaps"]


def test_a_wrong_shape_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "batch", "--shape", "gpt-5"])
    assert cli.main() == 2
    assert "gpt-5" in capsys.readouterr().err
