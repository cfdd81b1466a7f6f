"""OpenVINO as a peer: its graph computes the same tokens as our model from the same weights."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_bench.errors import BenchError
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.peers import registry
from tinyllm_bench.peers.openvino import OpenVinoRunner
from tinyllm_bench.peers.openvino_graph import (
    BITS,
    SCALES,
    OpenVinoFormat,
    random_codes,
    tensor_bytes,
)
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config
from tinyllm_ops import MLX
from tinyllm_qwen import Qwen, QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes

PROMPT = [5, 200, 31, 7]
needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")


def small_config(shape: str) -> QwenConfig:
    return QwenConfig.from_hf(published_config(shape) | {"num_hidden_layers": 2, "vocab_size": 320})


def same_model(config: QwenConfig, weights: OpenVinoFormat) -> Qwen:
    """Return our model of the numbers that the graph has as codes."""
    codes, numbers = random_codes(config, weights), {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 1:
            numbers[name] = mx.ones(shape) if "norm" in name else mx.zeros(shape)
        elif weights.bits == 16:
            numbers[name] = mx.array(codes[name].view(np.float16).astype(np.float32).reshape(shape))
        else:
            found = codes[name].view(np.int8)
            if weights.bits == 4:  # the low bits first, with the sign in bit 3
                found = np.stack([np.left_shift(found, 4) >> 4, found >> 4], -1)
            scaled = found.astype(np.float32) * SCALES[weights.bits]
            numbers[name] = mx.array(scaled.reshape(shape))
    return Qwen(config, numbers, ops=MLX)


class Watched(OpenVinoRunner):
    """Records logits and tokens, and computes in float32."""

    OPTIONS = OpenVinoRunner.OPTIONS | {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }

    def _next(self, tokens: "np.ndarray[tuple[int, int], np.dtype[np.int64]]", first: int) -> int:
        chosen = super()._next(tokens, first)
        self.chosen = [*getattr(self, "chosen", []), chosen]
        self.logits = np.array(self._request.get_output_tensor(0).data).reshape(-1)
        return chosen


@needs_openvino
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", ["pico", "qwen2.5-0.5b"])
def test_the_graph_computes_the_model(shape: str, bits: int) -> None:
    config, weights = small_config(shape), OpenVinoFormat(bits, 64)
    model = same_model(config, weights)
    runner = Watched(config, weights, PROMPT, 0)

    def check(text: list[int]) -> int:
        expected = np.array(model(mx.array([text]))[0, -1])
        error = np.abs(runner.logits - expected).max() / np.abs(expected).max()
        assert error < 1e-3
        return int(expected.argmax())

    for _ in range(2):
        runner.prefill()
        check(PROMPT)
        runner.rewind()
        runner.chosen = []
        runner.decode(3)
        first = PROMPT[0]
        chosen = [check([first, *runner.chosen[:2]])]
        assert chosen == runner.chosen[-1:]


@needs_openvino
def test_every_sample_decodes_after_the_same_context() -> None:
    config = small_config("pico")
    runner = Watched(config, OpenVinoFormat(4, 64), PROMPT, 6)
    logits = []
    for _ in range(3):
        runner.rewind()
        runner.decode(1)
        logits.append(runner.logits)
        runner.decode(2)
    assert (logits[0] == logits[1]).all()
    assert (logits[0] == logits[2]).all()
    for state in runner._request.query_state():
        assert state.state.shape[2] == 6 + 1 + 2
    empty = Watched(config, OpenVinoFormat(4, 64), PROMPT, 0)
    empty.rewind()
    empty.decode(1)
    assert np.abs(empty.logits - logits[0]).max() > 0


@needs_openvino
def test_openvino_stands_beside_the_opsets(
    monkeypatch: pytest.MonkeyPatch, bench: Callable[[str], tuple[int, str, str]]
) -> None:
    quick = "--seconds 0.0001 --prompt-tokens 4 --decode-tokens 2 --ops mlx --only model"
    code, out, err = bench(f"{quick} --peers --peer openvino --json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["failures"] == []
    found = {(row["regime"], row["by"]) for row in document["results"]}
    assert found >= {("prefill", "openvino int4"), ("decode", "openvino int4")}


def test_the_cost_is_that_of_the_graph(
    pico: BenchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "check_installed", lambda *_: None)
    settings = Settings(peers=True, peer=["openvino"], prompt_tokens=4, context=6)
    (child,), notices = registry.find_peers(pico, settings, PROMPT, tmp_path)
    child.close()
    assert (child.name, notices) == ("openvino int4", [])
    # A group of 64 numbers has 34 bytes, and a key has 64 bytes.
    vectors = 6 * (2 * 256 + 2 * 64) + 256
    matrices, keys = (5_246_976 - vectors) // 64 * 34, 2 * 6 * 2 * 64 * (6 + 1)
    assert child.costs.decode(7).bytes == matrices + 4 * vectors + keys


def test_models_that_the_graph_cannot_have_are_refused() -> None:
    with pytest.raises(BenchError, match="compared at 4, 8, 16 bits, not at 6"):
        OpenVinoFormat(6, 64)
    with pytest.raises(BenchError, match="no multiple of groups of 96"):
        tensor_bytes(small_config("pico"), OpenVinoFormat(4, 96))
    config = QwenConfig.from_hf(published_config("qwen3-30b-a3b"))
    with pytest.raises(BenchError, match="a mixture of experts is not supported"):
        tensor_bytes(config, OpenVinoFormat(4, 64))
