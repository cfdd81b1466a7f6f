"""Options of the command line reach the engine."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from tinyllm_cli.messages import UsageError
from tinyllm_engine import EngineSettings
from tinyllm_serve.cli import app
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

QUESTION = [{"role": "user", "content": "what does rmsnorm do?"}]
Start = Callable[..., Server]


def ask(server: Server) -> tuple[str, int]:
    """Return the answer, and the number of cached prompt tokens."""
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": QUESTION}).json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], cached


def test_draft_tokens_are_accepted_and_prefixes_survive_a_restart(
    pico: Server, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "made for it" / "prefixes"
    options = ("--draft-model", "pico", "--prefix-cache-path", str(path), "--page-size", "8")
    expected, _ = ask(pico)
    first = start(*options)
    ready = first.wait_for("ready")
    assert (ready["draft_model"], ready["num_speculative_tokens"]) == ("pico", 4)
    assert ask(first) == (expected, 0)
    drafted = first.metric("spec_decode_num_draft_tokens_total")
    # The draft model is the model itself, so only draft tokens past the end are refused.
    assert 0 <= drafted - first.metric("spec_decode_num_accepted_tokens_total") <= 4 < drafted
    assert first.stop() == 0
    assert any("snapshots were saved" in str(entry["event"]) for entry in first.log())
    second = start(*options)
    text, cached = ask(second)
    assert text == expected
    assert cached >= 8


def test_an_option_for_recurrent_layers_has_no_effect_without_them(start: Start) -> None:
    server = start("--snapshot-memory", "0.1")
    (notice,) = server.entries("--snapshot-memory has no effect: the model has no recurrent layers")
    assert notice["level"] == "warning"


def test_the_start_warns_of_what_a_checkpoint_lacks(
    start: Start, endless: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(endless, tmp_path / "without-end")
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / name).read_text())
        for end in ("eos_token", "eos_token_id"):
            values.pop(end, None)
        (folder / name).write_text(json.dumps(values))
    server = start("--model", str(folder))
    server.wait_for("ready")
    events = [str(entry["event"]) for entry in server.log() if entry["level"] == "warning"]
    assert any("names no end token" in event for event in events)


def test_every_engine_option_reaches_the_engine(tmp_path: Path) -> None:
    settings = Settings(
        kv_cache_memory=0.01,
        max_num_seqs=3,
        max_waiting=5,
        kv_bits=8,
        page_size=16,
        max_num_batched_tokens=64,
        step_seconds=0.5,
        prefix_cache_memory=0.001,
        snapshot_memory=0.002,
        prefix_cache_path=tmp_path / "prefixes",
        num_speculative_tokens=2,
    )

    async def made() -> EngineSettings:
        service = Service(settings)
        await service.start()
        try:
            return service.engine.settings
        finally:
            await service.engine.close()

    assert asyncio.run(made()) == EngineSettings(
        kv_cache_memory_bytes=10_000_000,
        max_num_seqs=3,
        max_waiting=5,
        kv_bits=8,
        page_size=16,
        max_num_batched_tokens=64,
        step_seconds=0.5,
        prefix_cache_memory_bytes=1_000_000,
        snapshot_memory_bytes=2_000_000,
        prefix_cache_path=tmp_path / "prefixes",
        num_speculative_tokens=2,
    )


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (
            {"draft_model": "pico", "num_speculative_tokens": 0},
            "--num-speculative-tokens: expected from 1 to 64 with --draft-model, got 0",
        ),
        ({"num_speculative_tokens": 65}, "--num-speculative-tokens: expected from 0 to 64, got 65"),
        ({"model": "folder/\udcff"}, "--model: expected a name in UTF-8, got 'folder/.udcff'"),
        ({"served_model_name": ["a", "\udcff"]}, "--served-model-name: expected a name in UTF-8"),
        ({"page_size": 0}, "--page-size: expected from 1 to 4096, got 0"),
        (
            {"max_num_batched_tokens": 0},
            "--max-num-batched-tokens: expected from 1 to 1048576, got 0",
        ),
        ({"step_seconds": float("nan")}, "--step-seconds: expected from 0.001 to 60, got nan"),
        (
            {"prefix_cache_memory": -1.0},
            "--prefix-cache-memory: expected from 0 to 1000000",
        ),
        ({"prefix_cache_path": Path()}, "--prefix-cache-path: expected a file, not a folder"),
        ({"prefix_cache_path": Path("/dev/zero")}, "--prefix-cache-path: expected a file, not"),
        ({"prefix_cache_path": Path("x" * 5000)}, "--prefix-cache-path: File name too long: name"),
        (
            {"prefix_cache_path": Path(__file__) / "folder" / "file"},
            "--prefix-cache-path: expected a file in a writable folder, got ",
        ),
        (
            {"prefix_cache_path": Path("file"), "enable_prefix_caching": False},
            "--prefix-cache-path: expected none with --no-enable-prefix-caching",
        ),
        (
            {"snapshot_memory": 1.0, "enable_prefix_caching": False},
            "--snapshot-memory: expected none with --no-enable-prefix-caching",
        ),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        Settings(**wrong)


def test_the_default_number_of_draft_tokens() -> None:
    assert Settings().num_draft_tokens == 0
    assert Settings(draft_model="pico").num_draft_tokens == 4
    assert Settings(draft_model="mtp").num_draft_tokens == 2
    assert Settings(draft_model="pico", num_speculative_tokens=7).num_draft_tokens == 7


def test_older_names_of_options_still_work() -> None:
    older = "--name a --max-running 3 --prefill-tokens 64 --memory 0.5 --speculation 2"
    newer = "--served-model-name a --max-num-seqs 3 --max-num-batched-tokens 64"
    newer += " --kv-cache-memory 0.5 --num-speculative-tokens 2 --no-enable-prefix-caching"
    older += " --no-prefix-cache"
    settings = [app(names.split(), standalone_mode=False) for names in (older, newer)]
    assert settings[0] == settings[1] != Settings()
    assert settings[0].model_names == ["a"]
    assert not settings[0].enable_prefix_caching


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("override_generation_config", "temperature=1", "expected a JSON object, such as"),
        ("override_generation_config", "[]", "expected a JSON object, such as"),
        ("override_generation_config", '{"eos_token_id": 5}', "got eos_token_id: leave it out"),
        (
            "override_generation_config",
            '{"max_new_tokens": 5}',
            "got max_new_tokens: use --max-tokens",
        ),
        ("override_generation_config", '{"top_p": 2}', "top_p"),
        ("default_chat_template_kwargs", '{"messages": []}', "the server sets it"),
        ("default_chat_template_kwargs", '{"enable_thinking": "no"}', "valid boolean"),
    ],
)
def test_json_of_an_option_is_checked_at_the_start(option: str, value: str, message: str) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(UsageError, match=message) as caught:
        Service(Settings(**options))
    assert str(caught.value).startswith(f"--{option.replace('_', '-')}: ")


def test_the_log_does_not_have_the_keys() -> None:
    assert "secret" not in repr(Settings(api_key=["secret"]))


def test_the_readme_has_every_option() -> None:
    table = (Path(__file__).parents[1] / "README.md").read_text().split("## Options")[1]
    documented = set(re.findall(r"`(--[a-z-]+)", table))
    options = {f"--{each.name.replace('_', '-')}" for each in fields(Settings)}
    named = {name.replace("--no-enable", "--enable") for name in documented}
    assert options - named == set()
