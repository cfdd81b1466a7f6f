"""GGUF file of random weights: the shape of a model in the format of llama.cpp.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package
`gguf` from PyPI writes the file. Blocks of 32 weights share a float16 scale. Q4_0 packs a block
into 18 bytes: 4.5 bits a weight, as in MLX's 4-bit format with groups of 64 and 16-bit scales. Q8_0
packs a block into 34 bytes.
"""

import importlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes, is_matrix
from tinyllm_qwen.config.recurrent import Recurrent

from tinyllm_bench.errors import BenchError

_SCALE = np.float16(2.0**-8)
# The type for each number of bits. Other widths have no type of about the same size.
TYPES = {4: "Q4_0", 8: "Q8_0", 16: "F16"}
# Parts of names, and the names that `gguf` knows.
_KNOWN_PARTS = {"switch_mlp": "experts", "linear_attn.dt_bias": "linear_attn.dt_proj.bias"}


def gguf_type(bits: int) -> str:
    """Return the name of the type for a number of bits. Raise `BenchError` if there is none."""
    if bits not in TYPES:
        known = ", ".join(map(str, TYPES))
        raise BenchError(f"llama.cpp is compared at {known} bits, not at {bits}")
    return TYPES[bits]


def write_gguf(
    path: Path, config: QwenConfig, kind: str, tokenizer: Path | None = None
) -> dict[str, int]:
    """Write a model of random weights, with one tensor in memory at a time.

    Matrices have the type `kind`. Norms, biases and convolutions are float32. `tokenizer` is the
    folder of a checkpoint; without it, the model can only receive token ids. Return the bytes of
    each tensor, by its Hugging Face name without "model.". Raise `BenchError` if `gguf` is not
    installed, or cannot describe the model.
    """
    if importlib.util.find_spec("gguf") is None:
        raise BenchError("gguf is not installed (pip install gguf)")
    gguf = importlib.import_module("gguf")
    architecture = config.model_type.replace("_", "")
    writer = gguf.GGUFWriter(path, architecture)
    _add_config(writer, config)
    _add_vocabulary(writer, config.vocab_size, tokenizer, gguf)
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers
    )
    types, matrices, vectors = gguf.GGMLQuantizationType, np.dtype(np.uint8), np.dtype(np.float32)
    shapes, sizes = {}, {}
    for name, shape in _stored_shapes(config).items():
        full = name if name.startswith("lm_head.") else f"model.{name}"
        for part, known in _KNOWN_PARTS.items():
            full = full.replace(part, known)
        stored_name = names.get_name(full, try_suffixes=(".weight", ".bias"))
        dtype = matrices if is_matrix(name, shape) else vectors
        shapes[name] = _byte_shape(shape, kind, gguf) if dtype == matrices else shape
        sizes[name] = math.prod(shapes[name]) * dtype.itemsize
        stored = types[kind] if dtype == matrices else types.F32
        writer.add_tensor_info(stored_name, shapes[name], dtype, sizes[name], stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.default_rng(0)
    for name, shape in shapes.items():
        if is_matrix(name, shape):
            writer.write_tensor_data(_codes(shape, kind, generator))
        else:  # the decay rates of llama.cpp are -exp(A_log)
            number = -1 if name.endswith("A_log") else 1
            writer.write_tensor_data(np.full(shape, number, np.float32))
    writer.close()
    return sizes


def _stored_shapes(config: QwenConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors, without the axes of length 1 that GGUF leaves out."""
    shapes = expected_shapes(config)
    for name, shape in shapes.items():
        if name.endswith(("conv1d.weight", "shared_expert_gate.weight")):
            shapes[name] = tuple(length for length in shape if length > 1)
    return shapes


def _add_config(writer: Any, config: QwenConfig) -> None:
    """Write the architecture with a `gguf.GGUFWriter`."""
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
    if config.experts is not None:
        writer.add_expert_count(config.experts.num_experts)
        writer.add_expert_used_count(config.experts.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
        if config.experts.shared_size:
            writer.add_expert_shared_feed_forward_length(config.experts.shared_size)
    if config.recurrent is not None:
        _add_recurrent(writer, config, config.recurrent)


def _add_recurrent(writer: Any, config: QwenConfig, recurrent: Recurrent) -> None:
    """Write the sizes of gated DeltaNet layers.

    Raise `BenchError` if llama.cpp has no such model.
    """
    layers = range(config.num_hidden_layers)
    interval = 1 + min(set(layers) - recurrent.layers, default=len(layers))
    regular = {layer for layer in layers if (layer + 1) % interval}
    if regular != recurrent.layers or recurrent.key_dim != recurrent.value_dim:
        raise BenchError("GGUF: expected attention at regular intervals, and heads of one size")
    writer.add_full_attention_interval(interval)
    writer.add_rope_dimension_count(config.rotary_dims)
    writer.add_rope_dimension_sections([11, 11, 10, 0])  # no effect on text
    writer.add_ssm_conv_kernel(recurrent.kernel)
    writer.add_ssm_state_size(recurrent.key_dim)
    writer.add_ssm_group_count(recurrent.num_key_heads)
    writer.add_ssm_time_step_rank(recurrent.num_value_heads)
    writer.add_ssm_inner_size(recurrent.value_width)


def _add_vocabulary(writer: Any, size: int, tokenizer: Path | None, gguf: ModuleType) -> None:
    """Write the tokens of a checkpoint, or numbered tokens, with a `gguf.GGUFWriter`."""
    tokens: Sequence[str | bytes] = [f"t{i}" for i in range(size)]
    types, merges = [gguf.TokenType.NORMAL] * size, ["t 0"]
    if tokenizer is not None:
        # Special token ids are left out: an answer would end at the first end-of-sequence token.
        tokens, _, types = map(list, zip(*gguf.BpeVocab(tokenizer).all_tokens(), strict=True))
        merges = gguf.SpecialVocab(tokenizer, load_merges=True).merges
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)


def _byte_shape(shape: tuple[int, ...], kind: str, gguf: ModuleType) -> tuple[int, ...]:
    """Return the stored shape of a matrix, with bytes instead of weights in the last axis."""
    try:
        stored = gguf.quant_shape_to_byte_shape(shape, gguf.GGMLQuantizationType[kind])
    except ValueError as error:
        raise BenchError(f"GGUF: {error}") from error
    return tuple(stored)


def _codes(
    shape: tuple[int, ...], kind: str, generator: np.random.Generator
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """Draw the bytes of a matrix: blocks of 32 random codes, with scales that make them small."""
    codes = generator.integers(0, 256, math.prod(shape), np.uint8)
    if kind == "F16":  # the exponent of 2^-6, as in `random_weights`
        numbers = codes.view(np.uint16)
        numbers[:] = numbers & np.uint16(0x83FF) | np.uint16(9 << 10)
    else:
        block_bytes = {"Q4_0": 18, "Q8_0": 34}[kind]
        codes.reshape(-1, block_bytes)[:, :2] = np.frombuffer(_SCALE.tobytes(), np.uint8)
    return codes.reshape(shape)
