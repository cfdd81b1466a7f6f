"""A model that computes NaN: the requests that report numbers get an error that says so."""

import asyncio
import logging
import math
import shutil
from pathlib import Path

import httpx
import mlx.core as mx
import pytest
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_serve.application import make_application
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings

HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
REQUESTS: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", {**HELLO, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**HELLO, "logprobs": True, "stream": True}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 2, "logprobs": 1}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 0, "logprobs": 0, "echo": True}),
    ("/v1/embeddings", {"input": "hello"}),
]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """pico with NaN in its last norm."""
    folder = Path(shutil.copytree(resolve("pico"), tmp_path / "damaged"))
    (path,) = folder.glob("*.safetensors")
    weights = mx.load(str(path))
    assert isinstance(weights, dict)
    weights["model.norm.weight"] *= math.nan
    mx.eval(weights)
    mx.save_safetensors(str(path), weights)
    return folder


def test_numbers_of_damaged_weights_are_refused(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answers() -> list[httpx.Response]:
        service = Service(Settings(model=str(damaged)))
        await service.start()
        transport = httpx.ASGITransport(make_application(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found = [await client.post(path, json=body) for path, body in REQUESTS]
        await service.close()
        return found

    with caplog.at_level(logging.ERROR):
        for answer in asyncio.run(answers()):
            assert answer.status_code == 500
            error = answer.json()["error"]
            assert error["code"] == "model_nan"
            assert error["message"].startswith("the model computes NaN: its weights are damaged")
    assert not caplog.records
