"""A GGUF file of random weights: the model's shape in the format that llama.cpp reads.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, written by
PyPI's `gguf`. Blocks of 32 numbers share a float16 scale: Q4_0 packs them into 18 bytes (4.5 bits
a number, as MLX's 4-bit format of group 64 with 16-bit scales has), Q8_0 into 34.
"""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, runtime_checkable

import numpy as np
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.weights import expected_shapes

from tinyllm_bench.errors import BenchError
from tinyllm_bench.peers.gguf_vocabulary import GgufVocabulary

_BLOCK = 32
_SCALE = np.float16(2.0**-8)
_PARTS = {
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
_WHOLE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


@runtime_checkable
class _Writer(Protocol):
    """What is told to `gguf.GGUFWriter`, beside tensors."""

    def add_block_count(self, length: int) -> None: ...

    def add_context_length(self, length: int) -> None: ...

    def add_embedding_length(self, length: int) -> None: ...

    def add_feed_forward_length(self, length: int) -> None: ...

    def add_head_count(self, count: int) -> None: ...

    def add_head_count_kv(self, count: int) -> None: ...

    def add_key_length(self, length: int) -> None: ...

    def add_value_length(self, length: int) -> None: ...

    def add_layer_norm_rms_eps(self, value: float) -> None: ...

    def add_rope_freq_base(self, value: float) -> None: ...

    def add_tokenizer_model(self, model: str) -> None: ...

    def add_tokenizer_pre(self, pre: str) -> None: ...

    def add_token_list(self, tokens: list[str]) -> None: ...

    def add_token_types(self, types: list[int]) -> None: ...

    def add_token_merges(self, merges: list[str]) -> None: ...


@dataclass(frozen=True)
class GgufType:
    """How llama.cpp stores a matrix.

    Attributes:
        name: in `gguf.GGMLQuantizationType`.
        block: bytes of 32 numbers.
    """

    name: str
    block: int


# By the bits that were asked for; the other widths have no kin that is as wide.
TYPES = {4: GgufType("Q4_0", 18), 8: GgufType("Q8_0", 34), 16: GgufType("F16", 64)}


def write_gguf(
    path: Path, config: QwenConfig, kind: GgufType, vocabulary: GgufVocabulary | None = None
) -> dict[str, int]:
    """Write a model of random weights, one tensor in memory at a time.

    Args:
        path: the file, which must not exist.
        config: its architecture.
        kind: how matrices are stored; norms and biases are float32.
        vocabulary: its tokens; None for a model that will be given ids.

    Returns:
        The bytes of each tensor, by its Hugging Face name less "model.".

    Raises:
        BenchError: if `gguf` is not installed, or llama.cpp has no such model.
    """
    if importlib.util.find_spec("gguf") is None:
        raise BenchError("gguf is not installed (pip install gguf)")
    if config.experts is not None:
        raise BenchError("a mixture of experts is not written as GGUF here")
    gguf = importlib.import_module("gguf")
    stored = getattr(gguf.GGMLQuantizationType, kind.name)
    writer = gguf.GGUFWriter(path, config.model_type)
    _describe(writer, config)
    _list_tokens(writer, vocabulary or GgufVocabulary.nameless(config.vocab_size), gguf)
    tensors = {name: _tensor_shape(shape, kind) for name, shape in expected_shapes(config).items()}
    for name, (shape, matrix) in tensors.items():
        dtype = np.dtype(np.uint8 if matrix else np.float32)
        size = int(np.prod(shape)) * dtype.itemsize
        raw = stored if matrix else gguf.GGMLQuantizationType.F32
        writer.add_tensor_info(_gguf_name(name), shape, dtype, size, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.default_rng(0)
    for shape, matrix in tensors.values():
        blocks = _blocks(shape, kind, generator) if matrix else np.ones(shape, np.float32)
        writer.write_tensor_data(blocks)
    writer.close()
    return {
        name: int(np.prod(shape)) * (1 if matrix else 4)
        for name, (shape, matrix) in tensors.items()
    }


def _describe(writer: "_Writer", config: QwenConfig) -> None:
    """What llama.cpp wants to know of the model."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)


def _list_tokens(writer: "_Writer", vocabulary: GgufVocabulary, gguf: ModuleType) -> None:
    """What it wants to know of the tokenizer."""
    normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    count = len(vocabulary.tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types([control if i in vocabulary.control else normal for i in range(count)])
    writer.add_token_merges(vocabulary.merges)


def _gguf_name(name: str) -> str:
    """The name that llama.cpp has for a tensor of Hugging Face's name."""
    path, suffix = name.rsplit(".", 1)
    if path in _WHOLE:
        return f"{_WHOLE[path]}.{suffix}"
    _, layer, part = path.split(".", 2)
    return f"blk.{layer}.{_PARTS[part]}.{suffix}"


def _tensor_shape(shape: tuple[int, ...], kind: GgufType) -> tuple[tuple[int, ...], bool]:
    """The shape to write, in bytes for a matrix, and whether it is one."""
    if len(shape) < 2:
        return shape, False
    if shape[-1] % _BLOCK:
        raise BenchError(f"GGUF wants rows in blocks of {_BLOCK} numbers, the model's {shape[-1]}")
    return (*shape[:-1], shape[-1] // _BLOCK * kind.block), True


def _blocks(
    shape: tuple[int, ...], kind: GgufType, generator: np.random.Generator
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """Random bytes, with scales that make small numbers of them."""
    blocks = generator.integers(0, 256, int(np.prod(shape)), np.uint8)
    if kind.name == "F16":  # the exponent of 2^-6, as in `random_weights`
        numbers = blocks.view(np.uint16)
        numbers[:] = numbers & np.uint16(0x83FF) | np.uint16(9 << 10)
    else:
        scale = np.frombuffer(_SCALE.tobytes(), np.uint8)
        blocks.reshape(-1, kind.block)[:, : scale.size] = scale
    return blocks.reshape(shape)
