"""Whoever runs the model runs the same one, from the same place."""

import sys
from pathlib import Path
from types import ModuleType

import gguf
import mlx.core as mx
import numpy as np
import pytest
from tinyllm_bench.errors import BenchError
from tinyllm_bench.peers import gguf_file, llama_cpp_runner, mlx_lm_runner, roster
from tinyllm_bench.peers.gguf_file import TYPES, write_gguf
from tinyllm_bench.peers.llama_cpp_runner import LlamaCppRunner
from tinyllm_bench.peers.mlx_lm_runner import MlxLmRunner
from tinyllm_bench.qwen_runner import QwenRunner
from tinyllm_bench.runner import Runner
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config
from tinyllm_bench.subject import Subject
from tinyllm_ops import MLX, REFERENCE
from tinyllm_qwen import QwenConfig

PROMPT = [5, 900, 31, 7]


class Watched(QwenRunner):
    """Notes the tokens that it chooses."""

    def _next(self, tokens: mx.array, cache: list) -> mx.array:
        chosen = super()._next(tokens, cache)
        self.chosen = [*getattr(self, "chosen", []), int(chosen)]
        return chosen


class WatchedMlxLm(MlxLmRunner):
    """The same of mlx-lm."""

    def _next(self, tokens: mx.array, cache: list) -> mx.array:
        chosen = super()._next(tokens, cache)
        self.chosen = [*getattr(self, "chosen", []), int(chosen)]
        return chosen


@pytest.mark.parametrize(("bits", "shape"), [(4, "pico"), (32, "pico")])
def test_ours_and_mlx_lms_choose_the_same_tokens(bits: int, shape: str) -> None:
    subject = Subject.make(Settings(shape=shape, bits=bits, prompt_tokens=4, decode_tokens=4))
    runners = [
        Watched(subject, REFERENCE, PROMPT, 0),
        Watched(subject, MLX, PROMPT, 0),
        WatchedMlxLm(subject, PROMPT, 0),
    ]
    for runner in runners:
        runner.prefill()
        runner.rewind()
        runner.decode(4)
    assert runners[0].chosen == runners[1].chosen == runners[2].chosen
    assert len(runners[0].chosen) == 5
    assert len({str(runner.decode_cost(4)) for runner in runners}) == 1
    assert len({str(runner.prefill_cost()) for runner in runners}) == 1


def test_every_sample_decodes_from_the_same_context(pico: Subject) -> None:
    runner = Watched(pico, MLX, PROMPT, 6)
    tokens = []
    for _ in range(3):
        runner.rewind()
        runner.chosen = []
        runner.decode(3)
        tokens.append(runner.chosen)
        assert runner._cache is not None
        assert {block.offset for block in runner._cache} == {9}
    assert tokens[0] == tokens[1] == tokens[2]


def test_the_context_holds_keys_that_are_no_zeros(pico: Subject) -> None:
    runner = QwenRunner(pico, MLX, PROMPT, 6)
    runner.rewind()
    assert runner._cache is not None
    for block in runner._cache:
        assert block.offset == 6
        for array in block.arrays:
            assert float(mx.abs(array[..., :6, :]).min(-1).max()) > 0


def test_a_cache_that_cannot_go_back_is_filled_again(pico: Subject) -> None:
    hf = dict(pico.hf) | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}
    subject = Subject("windows", hf, QwenConfig.from_hf(hf), pico.weights, pico.form)
    runner = QwenRunner(subject, MLX, PROMPT, 6)
    for _ in range(2):
        runner.rewind()
        assert runner._cache is not None
        assert {block.offset for block in runner._cache} == {6}
        runner.decode(2)


@pytest.mark.parametrize("shape", ["pico", "qwen2.5-0.5b"])
@pytest.mark.parametrize("bits", TYPES)
def test_a_gguf_file_has_the_tensors_that_llama_cpp_looks_for(
    tmp_path: Path, shape: str, bits: int
) -> None:
    hf = published_config(shape) | {"num_hidden_layers": 2, "vocab_size": 320}
    config, kind = QwenConfig.from_hf(hf), TYPES[bits]
    written = write_gguf(tmp_path / "model.gguf", config, kind)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    arch = {"qwen3": gguf.MODEL_ARCH.QWEN3, "qwen2": gguf.MODEL_ARCH.QWEN2}[config.model_type]
    names = gguf.get_tensor_name_map(arch, 2)
    expected = {}
    for name, size in written.items():
        path, suffix = f"model.{name}".rsplit(".", 1)
        expected[f"{names.get_name(path)}.{suffix}"] = size
    assert {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors} == expected
    for tensor in reader.tensors:
        matrix = len(tensor.shape) > 1
        assert tensor.tensor_type.name == (kind.name if matrix else "F32")
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(numbers).all()
        assert 0 < np.abs(numbers).max() <= 1
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    assert tuple(embedding.shape) == (config.hidden_size, 320)  # the last axis first
    told = {
        field.name: field.contents()
        for field in reader.fields.values()
        if field.name.startswith((config.model_type, "general", "tokenizer"))
    }
    assert told["general.architecture"] == config.model_type
    assert told[f"{config.model_type}.block_count"] == 2
    assert told[f"{config.model_type}.attention.head_count_kv"] == config.num_key_value_heads
    assert told[f"{config.model_type}.attention.key_length"] == config.head_dim
    assert len(told["tokenizer.ggml.tokens"]) == 320


class FakeLlama:
    """Of `llama_cpp.Llama` what the runner uses; it notes what it is told."""

    def __init__(self, **options: object) -> None:
        self.options = options
        self.n_tokens = 0
        self.ctx = "the context"
        self.log: list[str] = []

    def reset(self) -> None:
        self.n_tokens = 0

    def eval(self, tokens: list[int]) -> None:
        self.log.append(f"{self.n_tokens}+{len(tokens)}")
        self.n_tokens += len(tokens)

    def n_vocab(self) -> int:
        return 2048


def fake_logits(ctx: object, place: int) -> object:
    assert (ctx, place) == ("the context", -1)
    return np.ctypeslib.as_ctypes(np.arange(2048, dtype=np.float32))


def test_llama_cpp_is_driven_through_its_documented_api(
    pico: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("llama_cpp")
    library.Llama = FakeLlama
    library.llama_get_logits_ith = fake_logits
    monkeypatch.setitem(sys.modules, "llama_cpp", library)
    monkeypatch.setattr(llama_cpp_runner.importlib.util, "find_spec", lambda _name: library)
    runner = LlamaCppRunner(pico, PROMPT, 6, 3, tmp_path)
    llama = runner._llama
    assert isinstance(llama, FakeLlama)
    assert llama.options["n_ctx"] == 10
    assert runner.name == "llama.cpp Q4_0"
    runner.prefill()
    for _ in range(2):
        runner.rewind()
        runner.decode(2)
    # The prompt; the context once; twice two tokens after it.
    assert llama.log == ["0+4", "0+6", "6+1", "7+1", "6+1", "7+1"]
    # Of 32 numbers 18 bytes, where ours have 20 of float32 scales; keys are of 16 bits.
    matrices = 5_246_976 - (6 * (2 * 256 + 2 * 64) + 256)
    keys = 2 * 6 * 2 * 64 * (6 + 1) * 2
    assert runner.decode_cost(2).bytes == matrices * 18 // 32 + 4 * (6 * 640 + 256) + keys


@pytest.mark.parametrize("missing", ["mlx_lm", "llama_cpp", "gguf"])
def test_a_peer_that_is_not_installed_is_named(
    pico: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    found = {"mlx_lm": mlx_lm_runner, "llama_cpp": llama_cpp_runner, "gguf": gguf_file}[missing]
    monkeypatch.setattr(
        found.importlib.util, "find_spec", lambda name: None if name == missing else object()
    )
    make = {
        "mlx_lm": lambda: MlxLmRunner(pico, PROMPT, 0),
        "llama_cpp": lambda: LlamaCppRunner(pico, PROMPT, 0, 1, tmp_path),
        "gguf": lambda: write_gguf(tmp_path / "x.gguf", pico.config, TYPES[4]),
    }[missing]
    with pytest.raises(BenchError, match="is not installed"):
        make()


def test_absent_peers_are_notices_and_the_rest_is_measured(
    pico: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "MlxLmRunner", lambda *_: QwenRunner(pico, MLX, PROMPT, 0))

    def absent(*_: object) -> Runner:
        raise BenchError("nowhere")

    monkeypatch.setattr(roster, "LlamaCppRunner", absent)
    runners, notices = roster.find_peers(pico, Settings(prompt_tokens=4), PROMPT, tmp_path)
    assert ([runner.name for runner in runners], notices) == (["mlx"], ["--peers: nowhere"])
    chosen = Settings(peers=True, peer=("llama.cpp",))
    assert roster.find_peers(pico, chosen, PROMPT, tmp_path) == ([], ["--peers: nowhere"])


def test_other_widths_have_no_kin_in_llama_cpp(
    pico: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject.make(Settings(bits=6, prompt_tokens=4, decode_tokens=2))
    monkeypatch.setattr(llama_cpp_runner.importlib.util, "find_spec", lambda _name: object())
    with pytest.raises(BenchError, match="compared at 4, 8, 16 bits, not at 6"):
        LlamaCppRunner(subject, PROMPT, 0, 1, tmp_path)
