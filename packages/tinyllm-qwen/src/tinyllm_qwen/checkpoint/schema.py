"""The schema of a checkpoint: the tensors that a config requires, and a check against the files."""

from collections.abc import Iterable, Mapping, Sequence

from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor
from tinyllm_qwen.checkpoint.tensor_reader import MLX_DTYPES
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.config.recurrent import Recurrent
from tinyllm_qwen.errors import CheckpointError

FLOATING = tuple(MLX_DTYPES)
_LISTED = 10


def expected_shapes(config: QwenConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor, by its Hugging Face name without "model.".

    Packed tensors have the shapes of the decoded tensors. Tensors of hybrid models have the shapes
    of MLX. Some projections are joined, as in the files: `split_projections` separates them. The
    tensors of the draft head (`draft_head_shapes`) are optional, and not included.
    """
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, width)}
    for layer in range(config.num_hidden_layers):
        parts = _layer_shapes(config, layer)
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    shapes["norm.weight"] = (width,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    return shapes


def draft_head_shapes(config: QwenConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the head for multi-token prediction, `mtp.*`."""
    if not config.mtp_layers:
        return {}
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (width, 2 * width),
        "mtp.pre_fc_norm_embedding.weight": (width,),
        "mtp.pre_fc_norm_hidden.weight": (width,),
        "mtp.norm.weight": (width,),
    }
    parts = _norm_shapes(config) | _attention_shapes(config) | _mlp_shapes(config, 0)
    for layer in range(config.mtp_layers):
        shapes |= {f"mtp.layers.{layer}.{name}": shape for name, shape in parts.items()}
    return shapes


def is_draft_head(name: str) -> bool:
    """Return True for the tensors of the head for multi-token prediction."""
    return name.startswith("mtp.")


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return True for matrices, which can be packed. The weights of a convolution are none."""
    return len(shape) > 1 and not name.endswith("conv1d.weight")


def _layer_shapes(config: QwenConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a decoder layer."""
    recurrent = config.recurrent
    mixer = (
        _delta_net_shapes(config.hidden_size, recurrent)
        if recurrent is not None and layer in recurrent.layers
        else _attention_shapes(config)
    )
    return _norm_shapes(config) | mixer | _mlp_shapes(config, layer)


def _norm_shapes(config: QwenConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the two norms of a layer."""
    names = ("input_layernorm.weight", "post_attention_layernorm.weight")
    return dict.fromkeys(names, (config.hidden_size,))


def _attention_shapes(config: QwenConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an attention layer."""
    width, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    rows = 2 * queries if config.output_gate else queries
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (rows, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (width, queries),
    }
    if config.attention_bias:
        for name, size in (("q", rows), ("k", keys), ("v", keys)):
            shapes[f"self_attn.{name}_proj.bias"] = (size,)
    if config.output_bias:
        shapes["self_attn.o_proj.bias"] = (width,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (head_dim,)
    return shapes


def _delta_net_shapes(width: int, sizes: Recurrent) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a recurrent layer of a model of `width` features."""
    heads = sizes.num_value_heads
    rows = {"qkv": sizes.channels, "z": sizes.value_width, "b": heads, "a": heads}
    if sizes.joint:
        rows = {"qkvz": rows["qkv"] + rows["z"], "ba": 2 * heads}
    projections = {f"linear_attn.in_proj_{key}.weight": (size, width) for key, size in rows.items()}
    return projections | {
        "linear_attn.conv1d.weight": (sizes.channels, sizes.kernel, 1),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (sizes.value_dim,),
        "linear_attn.out_proj.weight": (width, sizes.value_width),
    }


def _mlp_shapes(config: QwenConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the MLP of a layer, or of the router and experts of a MoE layer."""
    width, experts = config.hidden_size, config.experts
    if experts is None or layer not in experts.layers:
        return _gated_mlp_shapes("mlp", config.intermediate_size, width)
    count, mlp = experts.num_experts, experts.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "mlp.gate.weight": (count, width),
        "mlp.switch_mlp.gate_proj.weight": (count, mlp, width),
        "mlp.switch_mlp.up_proj.weight": (count, mlp, width),
        "mlp.switch_mlp.down_proj.weight": (count, width, mlp),
    }
    if experts.shared_size:
        shapes |= _gated_mlp_shapes("mlp.shared_expert", experts.shared_size, width)
        shapes["mlp.shared_expert_gate.weight"] = (1, width)
    return shapes


def _gated_mlp_shapes(name: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an MLP with `hidden` features."""
    return {
        f"{name}.gate_proj.weight": (hidden, width),
        f"{name}.up_proj.weight": (hidden, width),
        f"{name}.down_proj.weight": (width, hidden),
    }


def required_shapes(
    config: QwenConfig, stored: Mapping[str, StoredTensor]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that a checkpoint must have, before packing.

    The draft head is among them if the files have a part of it.
    """
    drafts = draft_head_shapes(config) if any(map(is_draft_head, stored)) else {}
    return expected_shapes(config) | drafts


def packed_formats(
    config: QwenConfig, stored: Mapping[str, StoredTensor]
) -> dict[str, PackedFormat]:
    """Return the formats of the packed matrices, by module path.

    As in MLX, a matrix is packed if the files have scales for the matrix. The config gives the
    default format, and the formats of matrices that differ. If a matrix that the config does not
    name has other shapes than the default format, its shapes determine its format, as in mlx-lm. A
    matrix with a format of its own or without a floating weight counts as packed too, so that
    `check_schema` reports missing scales.
    """
    quantization = config.quantization
    if quantization is None:
        return {}
    formats: dict[str, PackedFormat] = {}
    for name, shape in required_shapes(config, stored).items():
        path = name.removesuffix(".weight")
        packed = quantization.format_of(path)
        if packed is None or not is_matrix(name, shape):
            continue
        if path not in quantization.overrides:
            packed = _stored_format(path, shape[-1], stored) or packed
        weight = stored.get(name)
        floating = weight is not None and weight.dtype in FLOATING
        if f"{path}.scales" in stored or path in quantization.overrides or not floating:
            formats[path] = packed
    return formats


def _stored_format(
    path: str, columns: int, stored: Mapping[str, StoredTensor]
) -> PackedFormat | None:
    """Return the format that the shapes of a packed matrix determine; None if there is none."""
    codes, scales = stored.get(f"{path}.weight"), stored.get(f"{path}.scales")
    if codes is None or scales is None or not codes.shape or not scales.shape:
        return None
    return PackedFormat.of_shapes(
        columns, codes.shape[-1], scales.shape[-1], floating=scales.dtype in FLOATING
    )


def check_schema(
    config: QwenConfig, stored: Mapping[str, StoredTensor], source: str
) -> dict[str, PackedFormat]:
    """Check that a checkpoint has exactly the tensors that the config requires.

    Args:
        config: the architecture.
        stored: the tensors of the files, by name without "model.".
        source: the name of the checkpoint for error messages.

    Returns:
        The formats of the packed matrices, by module path.

    Raises:
        CheckpointError: if tensors are missing, unexpected, or of the wrong shape or dtype. The
            message lists the tensors.
    """
    formats = packed_formats(config, stored)
    expected: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
    wrong: list[str] = []
    for name, shape in required_shapes(config, stored).items():
        path = name.removesuffix(".weight")
        if path not in formats:
            expected[name] = (shape, FLOATING)
            continue
        packed = formats[path]
        if shape[-1] % packed.group_size:
            wrong.append(
                f"{path}: expected a multiple of {packed.group_size} columns, got {shape[-1]}"
            )
        for part, (dtype, size) in packed.arrays(path, shape).items():
            expected[part] = (size, (dtype,) if dtype else FLOATING)
    for name, (shape, dtypes) in expected.items():
        entry = stored.get(name)
        if entry is not None and (entry.shape != shape or entry.dtype not in dtypes):
            wrong.append(
                f"{name}: expected {'/'.join(dtypes)} {shape}, got {entry.dtype} {entry.shape}"
            )
    missing = [name for name in expected if name not in stored]
    unexpected = [name for name in stored if name not in expected]
    if not (missing or unexpected or wrong):
        return formats
    lines = [f"{source}: the tensors do not fit config.json"]
    lines += _section("missing", missing)
    lines += _section("unexpected", unexpected)
    lines += _section("wrong", wrong)
    lines.append(_advice(config, missing, unexpected, wrong))
    raise CheckpointError("\n".join(lines))


def _section(title: str, items: list[str]) -> list[str]:
    """Return the lines for one kind of defect: the number of tensors, and the first names."""
    if not items:
        return []
    more = [f"    ... and {len(items) - _LISTED} more"] if len(items) > _LISTED else []
    return [f"  {title} ({len(items)}):", *(f"    {item[:200]}" for item in items[:_LISTED]), *more]


def _advice(
    config: QwenConfig, missing: Iterable[str], unexpected: Iterable[str], wrong: Sequence[str]
) -> str:
    """Return the remedy at the end of an error message."""
    if config.quantization is None and any(name.endswith(".scales") for name in unexpected):
        return "The files are quantized, but config.json has no quantization: use their config."
    if {name.rpartition(".")[0] for name in missing} == {"lm_head"} and not wrong:
        return "If the embedding is also the head, set tie_word_embeddings to true in config.json."
    return "Config and weights come from different models, or a file is damaged: download again."
