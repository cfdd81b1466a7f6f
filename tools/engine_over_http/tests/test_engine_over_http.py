"""The tool times an engine and a server of the same model in turns."""

import json

import pytest
from engine_over_http.__main__ import app
from tinyllm_cli.program import run_program

OPTIONS = "--requests 1 --requests 3 --tokens 12 --rounds 2 --prompt 1500 --dtype float32 --json"


def test_an_engine_and_a_server_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["engine_over_http", *OPTIONS.split()])
    assert run_program(app, "engine_over_http") == 0
    document = json.loads(capsys.readouterr().out)
    for name in ("engine", "over HTTP"):
        batches, prompt = document[name]["batches"], document[name]["long_prompt"]
        assert [batch["requests"] for batch in batches] == [1, 1, 3, 3]
        assert prompt["prompt_tokens"] == 1500
        assert prompt["gaps"]
        # The other request gets tokens while the prompt is computed, not before.
        assert sum(prompt["gaps"]) <= prompt["prompt_seconds"]
    for batch in document["over HTTP"]["batches"]:
        assert 0 < len(batch["gaps"]) <= 11 * batch["requests"]
        assert batch["tokens_per_second"] > 0
