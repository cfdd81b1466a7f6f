"""Conversion of a model of mlx-lm to a `Qwen`, without an import of mlx-lm."""

import dataclasses
from collections.abc import Mapping

import mlx.core as mx
from mlx.nn.layers.base import Module
from tinyllm_layers import Backend
from tinyllm_ops import REFERENCE, OpSet, QuantizedTensor, Weight

from tinyllm_qwen.checkpoint.joint_projections import split_projections
from tinyllm_qwen.checkpoint.schema import expected_shapes, is_matrix
from tinyllm_qwen.config.module_path import module_path
from tinyllm_qwen.config.quantization import PackedFormat, Quantization
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.model import Qwen

# The arrays that each class of layer may hold. Classes are compared by name, so that mlx-lm need
# not be imported. Derived classes do not match, because they may compute something else.
_NN, _LM = "mlx.nn.layers", "mlx_lm.models"
_LAYERS: dict[tuple[str, str], tuple[str, ...]] = {
    (f"{_NN}.linear", "Linear"): ("weight", "bias"),
    (f"{_NN}.embedding", "Embedding"): ("weight",),
    (f"{_NN}.normalization", "RMSNorm"): ("weight",),
    (f"{_NN}.quantized", "QuantizedLinear"): ("weight", "scales", "biases", "bias"),
    (f"{_NN}.quantized", "QuantizedEmbedding"): ("weight", "scales", "biases"),
    (f"{_NN}.convolution", "Conv1d"): ("weight",),
    (f"{_LM}.switch_layers", "SwitchLinear"): ("weight",),
    (f"{_LM}.switch_layers", "QuantizedSwitchLinear"): ("weight", "scales", "biases"),
    (f"{_LM}.qwen3_5", "GatedDeltaNet"): ("A_log", "dt_bias"),
    (f"{_LM}.qwen3_next", "Qwen3NextGatedDeltaNet"): ("A_log", "dt_bias"),
    (f"{_LM}.qwen3_next", "Qwen3NextRMSNormGated"): ("weight",),
}


def from_mlx_lm(model: Module, *, ops: OpSet = REFERENCE) -> Qwen:
    """Convert a model of a supported family that `mlx_lm.load` returned.

    The weights may have any format. The arrays are shared, not copied: the new model needs no
    additional memory, and in-place changes of mlx-lm's arrays change the new model too. Two kinds
    of weights are copied: those whose layout a `Backend` changes, and joint projections of hybrid
    models; see `split_projections`.

    The config is `model.args` of mlx-lm, which has no sliding windows. For Qwen3-MoE, `model.args`
    contains the YaRN settings of the checkpoint. mlx-lm ignores them, but this function uses them.
    Qwen2-MoE is refused, because its `model.args` have no context length.

    Args:
        model: the model as mlx-lm returned it.
        ops: the implementation of the model's maths.

    Raises:
        CheckpointError: if the model has another family, an adapter, an unknown class of layer or
            an unknown weight. The message has the reason.
    """
    args: object = getattr(model, "args", None)
    if not dataclasses.is_dataclass(args) or isinstance(args, type):
        raise CheckpointError(
            f"model: expected a model from mlx_lm.load, with `args`, got {type(model).__name__}: "
            "load it with mlx_lm.load"
        )
    fields = dataclasses.asdict(args)
    if fields.get("model_type") == "qwen2_moe":
        raise CheckpointError(
            "model.args: mlx-lm keeps no context length for qwen2_moe: call tinyllm_qwen.load with "
            "the folder"
        )
    config = QwenConfig.from_hf(fields, "model.args")
    weights: dict[str, Weight] = {}
    for path, module in model.named_modules():
        weights |= _weights(path, module)
    _check(config, weights)
    config = dataclasses.replace(config, quantization=_quantization(weights))
    for path in [path for path in weights if path.endswith(".A_log")]:
        a_log = weights[path]
        assert isinstance(a_log, mx.array)  # no format packs vectors
        weights[path] = a_log.astype(mx.float32)
    split_projections(weights, config)
    if isinstance(ops, Backend):
        ops.prepare(weights)
    return Qwen(config, weights, ops=ops)


def _weights(path: str, module: Module) -> dict[str, Weight]:
    """Return the weights of a module by their names in `Qwen`, without submodules."""
    # MLX does not count names that begin with "_" as parameters. RoPE has such frequency tables.
    arrays = {
        name: value
        for name, value in module.items()
        if isinstance(value, mx.array) and not name.startswith("_")
    }
    if not arrays:
        return {}
    kind = type(module)
    known = _LAYERS.get((kind.__module__, kind.__qualname__))
    if known is None:
        raise CheckpointError(
            f"{path}: expected a layer that tinyllm knows, got {kind.__name__}: fuse adapters "
            "(LoRA, DoRA) with mlx_lm.fuse first"
        )
    unknown = sorted(arrays.keys() - set(known))
    if unknown:
        raise CheckpointError(f"{path}: {kind.__name__} with {unknown[0]} is not implemented yet")
    name = module_path(path)
    weights: dict[str, Weight] = {
        f"{name}.{key}": array for key, array in arrays.items() if key not in ("scales", "biases")
    }
    if "scales" in arrays:
        settings = {key: getattr(module, key) for key in ("group_size", "bits", "mode")}
        packed = PackedFormat.from_hf(settings, path)
        parts = arrays["weight"], arrays["scales"], arrays.get("biases")
        try:
            weights[f"{name}.weight"] = QuantizedTensor(
                *parts, packed.group_size, packed.bits, packed.mode
            )
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None
    return weights


def _check(config: QwenConfig, weights: Mapping[str, Weight]) -> None:
    """Raise unless the weights fit the config and have one dtype."""
    expected = expected_shapes(config)
    for name in sorted(expected.keys() ^ weights.keys()):
        state = "is missing" if name in expected else "is unexpected"
        raise CheckpointError(f"{name} {state}: the weights do not fit model.args")
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise CheckpointError(f"{name}: expected {shape}, got {tuple(weights[name].shape)}")
    dtypes = {
        str(weight.dtype)
        for name, weight in weights.items()
        if isinstance(weight, mx.array) and not name.endswith(".A_log")
    }
    if len(dtypes) > 1:
        raise CheckpointError(
            f"model: expected weights of one dtype, got {', '.join(sorted(dtypes))}: call "
            "model.set_dtype(mx.float32) first"
        )


def _quantization(weights: Mapping[str, Weight]) -> Quantization | None:
    """Return the formats of the matrices, as the field `quantization` of a config has them."""
    formats = {
        name.removesuffix(".weight"): PackedFormat(
            group_size=weight.group_size, bits=weight.bits, mode=weight.mode
        )
        for name, weight in weights.items()
        if isinstance(weight, QuantizedTensor)
    }
    if not formats:
        return None
    default = next(iter(formats.values()))
    others = {path: packed for path, packed in formats.items() if packed != default}
    bare = {
        name.removesuffix(".weight"): None
        for name, weight in weights.items()
        if isinstance(weight, mx.array) and is_matrix(name, tuple(weight.shape))
    }
    return Quantization(default=default, overrides={**others, **bare})
