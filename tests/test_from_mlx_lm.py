"""`from_mlx_lm` gives the logits of the model that mlx-lm loaded, or an error with the reason."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model
from published import FAMILIES, FORMATS, LOGITS, PAIRS, distance, prompt, published
from tinyllm_ops import MLX, REFERENCE, QuantizedTensor
from tinyllm_qwen import CheckpointError, Qwen, from_mlx_lm


@pytest.mark.parametrize(
    ("family", "form"),
    [pair for pair in [*((family, None) for family in FAMILIES), *PAIRS] if pair[0] != "qwen2_moe"],
)
def test_from_mlx_lm_gives_the_same_logits(tmp_path: Path, family: str, form: str | None) -> None:
    loaded, _ = load_model(published(tmp_path / "source", family))
    loaded.set_dtype(mx.float32)
    if form is not None:
        packed = FORMATS[form]

        def fits(_path: str, module: nn.Module) -> bool:
            width = module.weight.shape[-1] if "weight" in module else 1
            return hasattr(module, "to_quantized") and width % packed.group_size == 0

        nn.quantize(loaded, packed.group_size, packed.bits, mode=packed.mode, class_predicate=fits)
    model = from_mlx_lm(loaded, ops=REFERENCE if form is None else MLX)
    assert isinstance(model, Qwen)
    weight = model.embed_tokens.weight
    assert isinstance(weight, QuantizedTensor) is (form is not None)
    if form is not None:
        assert model.config.quantization is not None
        assert model.config.quantization.format_of("embed_tokens") == FORMATS[form]
    assert distance(model(prompt()), loaded(prompt())) < LOGITS


def test_from_mlx_lm_refuses_qwen2_moe(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen2_moe"))
    with pytest.raises(CheckpointError, match=r"no context length.*tinyllm_qwen\.load"):
        from_mlx_lm(theirs)


def test_from_mlx_lm_shares_the_arrays(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    mx.eval(theirs.parameters())
    before = mx.get_active_memory()
    ours = from_mlx_lm(theirs)
    mx.eval([w.arrays if isinstance(w, QuantizedTensor) else w for w in ours.weights()])
    assert ours.norm.weight is theirs.model.norm.weight
    assert mx.get_active_memory() - before < 10_000  # tables of frequencies


def test_from_mlx_lm_refuses_adapters(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    linear_to_lora_layers(theirs, 1, {"rank": 4, "scale": 1.0, "dropout": 0.0})
    with pytest.raises(CheckpointError, match=r"_proj: expected .*LoRALinear.*mlx_lm\.fuse first"):
        from_mlx_lm(theirs)


def test_from_mlx_lm_refuses_global_scales(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3_moe"))

    def experts(_path: str, module: nn.Module) -> bool | dict[str, Any]:
        settings = {"group_size": 16, "bits": 4, "mode": "nvfp4", "global_scale": True}
        return settings if isinstance(module, SwitchLinear) else False

    nn.quantize(theirs, class_predicate=experts)
    with pytest.raises(CheckpointError, match=r"switch_mlp.*global_scale is not implemented yet"):
        from_mlx_lm(theirs)


def test_from_mlx_lm_names_the_layer_of_arrays_that_do_not_fit(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    nn.quantize(theirs, group_size=32, bits=4)
    theirs.model.layers[1].mlp.up_proj.pop("biases")
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj: biases: mode 'affine' has biases"
    ):
        from_mlx_lm(theirs)


def test_from_mlx_lm_refuses_several_dtypes(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    theirs.model.norm.set_dtype(mx.float32)
    with pytest.raises(CheckpointError, match=r"one dtype, got mlx\.core\.bfloat16, mlx\.core\."):
        from_mlx_lm(theirs)


def test_from_mlx_lm_refuses_other_model_types(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    theirs.args.model_type = "llama"
    with pytest.raises(CheckpointError, match=r"model\.args: model_type: expected one of qwen2.*"):
        from_mlx_lm(theirs)
    with pytest.raises(CheckpointError, match=r"expected a model from mlx_lm\.load"):
        from_mlx_lm(nn.Linear(2, 2))


def test_from_mlx_lm_refuses_unexpected_and_missing_weights(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    theirs.model.layers[0].self_attn.o_proj = nn.Linear(256, 128, bias=True)
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.o_proj\.bias is unexpected"):
        from_mlx_lm(theirs)
    del theirs.model.layers[0].self_attn.o_proj
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.o_proj\.weight is missing"):
        from_mlx_lm(theirs)
