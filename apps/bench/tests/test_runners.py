"""Runners of a whole model: all runners choose the same tokens from the same context."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import gguf
import mlx.core as mx
import numpy as np
import pytest
from tinyllm_bench.cases.qwen_runner import QwenRunner
from tinyllm_bench.cases.whole_model import LocalRunner
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.opsets import has_own_layout
from tinyllm_bench.peers.gguf import TYPES, write_gguf
from tinyllm_bench.peers.llama_cpp import LlamaCppRunner
from tinyllm_bench.peers.mlx_lm import MlxLmRunner
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config
from tinyllm_kernels import available, opset
from tinyllm_layers import QuantizedCache, SequenceCache
from tinyllm_ops import MLX, REFERENCE, Phase
from tinyllm_qwen import Qwen, QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes

PROMPT = [5, 900, 31, 7]


class Watched(QwenRunner):
    """Records the tokens that it chooses, and the kinds of its caches."""

    chosen: tuple[int, ...] = ()
    kinds: frozenset[type] = frozenset()

    def _next(self, tokens: mx.array, cache: Sequence[SequenceCache], phase: Phase) -> mx.array:
        chosen = super()._next(tokens, cache, phase)
        self.chosen = (*self.chosen, int(chosen))
        self.kinds = frozenset(map(type, cache))
        return chosen


class WatchedMlxLm(MlxLmRunner):
    """Records the tokens that mlx-lm chooses."""

    chosen: tuple[int, ...] = ()

    def _next(self, tokens: mx.array, cache: list[object]) -> mx.array:
        chosen = super()._next(tokens, cache)
        self.chosen = (*self.chosen, int(chosen))
        return chosen


@pytest.mark.parametrize(("bits", "shape"), [(4, "pico"), (32, "pico")])
def test_ours_and_mlx_lms_choose_the_same_tokens(bits: int, shape: str) -> None:
    model = BenchModel.make(Settings(shape=shape, bits=bits, prompt_tokens=4, decode_tokens=4))
    runners: list[Watched | WatchedMlxLm] = [
        Watched(model, REFERENCE, PROMPT, 0),
        Watched(model, MLX, PROMPT, 0),
        WatchedMlxLm(model, PROMPT, 0),
    ]
    for runner in runners:
        runner.prefill()
        runner.rewind()
        runner.decode(4)
    assert runners[0].chosen == runners[1].chosen == runners[2].chosen
    assert len(runners[0].chosen) == 5


def test_prompts_and_decoding_quantize_keys_and_values(pico: BenchModel) -> None:
    runner = Watched(pico, MLX, PROMPT, 6, 8)
    runner.prefill()
    assert runner.kinds == {QuantizedCache}
    runner.kinds = frozenset()
    runner.rewind()
    runner.decode(4)
    assert runner.kinds == {QuantizedCache}
    assert runner.costs.decode(6).bytes < Watched(pico, MLX, PROMPT, 6).costs.decode(6).bytes


def test_every_sample_decodes_from_the_same_context(pico: BenchModel) -> None:
    runner = Watched(pico, MLX, PROMPT, 6)
    tokens = []
    for _ in range(3):
        runner.rewind()
        runner.chosen = ()
        runner.decode(3)
        tokens.append(runner.chosen)
        assert runner._cache is not None
        assert {block.offset for block in runner._cache} == {9}
    assert tokens[0] == tokens[1] == tokens[2]


class SlowToRewind(LocalRunner):
    """A runner that does nothing, after a long preparation."""

    def prefill(self) -> None:
        pass

    def rewind(self) -> None:
        time.sleep(0.05)

    def decode(self, tokens: int) -> None:
        pass


def test_a_rewind_is_not_part_of_the_time() -> None:
    assert 0 <= SlowToRewind().time_decode(1) < 0.05


def test_the_time_of_the_thread_is_measured(pico: BenchModel) -> None:
    runner = QwenRunner(pico, MLX, PROMPT, 6)
    for measure in (runner.time_prefill, runner.time_decode):
        runner.host_seconds = 0.0
        seconds = measure(2)
        assert 0 < runner.host_seconds <= 1.1 * seconds


def test_opsets_with_one_layout_share_their_weights() -> None:
    model = BenchModel.make(Settings(shape="pico", bits=3, dtype="bfloat16", decode_tokens=4))
    present = [opset(backend.name) for backend in available() if backend.present]
    stored = dict(model.stored_bytes)
    for layout in (False, True):
        opsets = [ops for ops in present if has_own_layout(ops) is layout]
        before = None
        for ops in opsets:
            runner = QwenRunner(model, ops, PROMPT, 0)
            weights = {id(weight) for weight in model.weights.values()}
            assert weights == {id(weight) for weight in runner._model.weights()}
            assert before in (None, weights)
            before = weights
            # The codes of 3 bits that all OpSets are given, and not those of 4 that some read.
            assert runner.costs.nbytes == stored


def test_the_context_holds_keys_that_are_no_zeros(pico: BenchModel) -> None:
    runner = QwenRunner(pico, MLX, PROMPT, 6)
    runner.rewind()
    assert runner._cache is not None
    for block in runner._cache:
        assert block.offset == 6
        for array in block.arrays:
            assert float(mx.abs(array[..., :6, :]).min(-1).max()) > 0


def test_a_cache_that_cannot_go_back_is_filled_again(pico: BenchModel) -> None:
    hf = dict(pico.hf) | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}
    model = BenchModel("windows", hf, QwenConfig.from_hf(hf), pico.weights, pico.format)
    runner = QwenRunner(model, MLX, PROMPT, 6)
    for _ in range(2):
        runner.rewind()
        assert runner._cache is not None
        assert {block.offset for block in runner._cache} == {6}
        runner.decode(2)


@pytest.mark.parametrize("shape", ["pico", "qwen2.5-0.5b", "qwen3-30b-a3b", "qwen3.5-35b-a3b"])
@pytest.mark.parametrize("bits", TYPES)
def test_a_gguf_file_has_the_tensors_that_llama_cpp_looks_for(
    tmp_path: Path, shape: str, bits: int
) -> None:
    layers = 4 if shape.startswith("qwen3.5") else 2  # three recurrent layers, then attention
    hf = published_config(shape) | {"num_hidden_layers": layers, "vocab_size": 320}
    if "num_experts" in hf:
        hf |= {"num_experts": 4, "num_experts_per_tok": 2}
    config, kind = QwenConfig.from_hf(hf), TYPES[bits]
    written = write_gguf(tmp_path / "model.gguf", config, kind)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    architecture = config.model_type.replace("_", "")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], layers)
    expected = {}
    for name, size in written.items():
        full = name if name.startswith("lm_head") else f"model.{name}"
        full = full.replace("switch_mlp", "experts").replace("dt_bias", "dt_proj.bias")
        path, suffix = full.rsplit(".", 1)
        part = names.get_name(path)
        expected[f"{part}.{suffix}" if part else str(names.get_name(full))] = size
    assert {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors} == expected
    for tensor in reader.tensors:
        matrix = len(tensor.shape) > 1 and "conv1d" not in tensor.name
        assert tensor.tensor_type.name == (kind if matrix else "F32")
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(numbers).all()
        assert 0 < np.abs(numbers).max() <= 1
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    assert tuple(embedding.shape) == (config.hidden_size, 320)  # the last axis first
    fields = {
        field.name: field.contents()
        for field in reader.fields.values()
        if field.name.startswith((architecture, "general", "tokenizer"))
    }
    assert fields["general.architecture"] == architecture
    assert fields[f"{architecture}.block_count"] == layers
    assert fields[f"{architecture}.attention.head_count_kv"] == config.num_key_value_heads
    assert fields[f"{architecture}.attention.key_length"] == config.head_dim
    assert len(fields["tokenizer.ggml.tokens"]) == 320
    if config.recurrent is not None:
        assert fields[f"{architecture}.full_attention_interval"] == 4
        assert fields[f"{architecture}.ssm.group_count"] == 16
        assert fields[f"{architecture}.rope.dimension_count"] == 64
    if config.experts is not None:
        assert fields[f"{architecture}.expert_count"] == 4
        assert fields[f"{architecture}.expert_used_count"] == 2


# By part of a layer: the name in llama.cpp.
LLAMA_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def model_of_gguf(path: Path, config: QwenConfig) -> Qwen:
    """Build a model of the numbers in a GGUF file, found by their names in llama.cpp."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    weights = {}
    for name, shape in expected_shapes(config).items():
        path_of, suffix = name.rsplit(".", 1)
        parts = path_of.split(".", 2)
        layer = f"blk.{parts[1]}." if parts[0] == "layers" else ""
        part = parts[2] if layer else path_of
        tensor = tensors.pop(f"{layer}{LLAMA_NAMES[part]}.{suffix}")
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        weights[name] = mx.array(numbers.astype(np.float32)).reshape(shape)
    assert not tensors
    return Qwen(config, weights, ops=MLX)


class SimulatedLlama:
    """`llama_cpp.Llama` on MLX: it computes the file, and behaves as its documentation says.

    `eval` appends tokens after the first `n_tokens` of the cache, and fails beyond `n_ctx`.
    """

    config: QwenConfig
    latest: ClassVar["SimulatedLlama"]

    def __init__(self, model_path: str, n_ctx: int, **_: object) -> None:
        self.ctx = self._model = model_of_gguf(Path(model_path), self.config)
        self._n_ctx, self.n_tokens = n_ctx, 0
        self._cached: list[int] = []
        self.logits = np.zeros(0, np.float32)

    def reset(self) -> None:
        self.n_tokens = 0

    def eval(self, tokens: list[int]) -> None:
        self._cached = [*self._cached[: self.n_tokens], *tokens]
        self.n_tokens = len(self._cached)
        assert self.n_tokens <= self._n_ctx, "llama_decode: no space in the cache"
        logits = self._model(mx.array([self._cached]))[0, -1]
        self.logits = np.array(logits.astype(mx.float32))
        SimulatedLlama.latest = self

    def n_vocab(self) -> int:
        return len(self.logits)


class WatchedLlamaCpp(LlamaCppRunner):
    """Records the tokens that llama.cpp chooses."""

    def _most_probable(self) -> int:
        chosen = super()._most_probable()
        self.chosen = [*getattr(self, "chosen", []), chosen]
        return chosen


@pytest.mark.parametrize("bits", TYPES)
def test_llama_cpp_decodes_greedily_from_the_same_context_each_time(
    pico: BenchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    library = ModuleType("llama_cpp")
    monkeypatch.setattr(SimulatedLlama, "config", pico.config, raising=False)
    monkeypatch.setattr(library, "Llama", SimulatedLlama, raising=False)

    def logits_of(ctx: object, row: int) -> object:
        assert (ctx, row) == (SimulatedLlama.latest.ctx, -1)
        return np.ctypeslib.as_ctypes(SimulatedLlama.latest.logits)

    monkeypatch.setattr(library, "llama_get_logits_ith", logits_of, raising=False)
    monkeypatch.setitem(sys.modules, "llama_cpp", library)
    path = tmp_path / "model.gguf"
    write_gguf(path, pico.config, TYPES[bits])
    model = model_of_gguf(path, pico.config)

    def greedy(tokens: list[int], count: int) -> list[int]:
        text = list(tokens)
        for _ in range(count):
            text.append(int(mx.argmax(model(mx.array([text]))[0, -1])))
        return text[len(tokens) :]

    runner = WatchedLlamaCpp(path, PROMPT, 6, 3)
    context = [*PROMPT, *PROMPT[:2], PROMPT[0]]  # the prompt is repeated up to six tokens
    for _ in range(2):
        runner.chosen = []
        runner.prefill()
        for _ in range(2):
            runner.rewind()
            runner.decode(3)
        assert runner.chosen == greedy(PROMPT, 1) + 2 * greedy(context, 3)
