"""The network: pico's two shapes, their parameters as a dictionary, and the loss on answers."""

import math
from typing import Any, TypeAlias

import torch
from batches import Batch
from delta_net import GatedDeltaNet, check
from draft_head import DraftHead
from quantization import fake_quantize
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.nn.functional import cross_entropy, linear
from transformers import (
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

EMBEDDING = "embed_tokens.weight"
DRAFT_HEAD = "mtp."  # prefix of the parameters of the draft head
FAMILIES = ("qwen3", "qwen3.5")
DROPOUT = 0.1
"""Share of features zeroed in training: in embeddings and in the outputs of attention and MLP."""
DRAFT_WEIGHT = 0.3
"""Weight of the draft head's loss beside the model's own."""

Model: TypeAlias = Qwen3ForCausalLM | Qwen3_5ForCausalLM
_SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "attn_implementation": "eager",
}


def build(family: str, vocab_size: int, end: int, pad: int, seed: int) -> Model:
    """Return a new pico with 5 million parameters and a tied embedding.

    Attention is transformers' "eager" implementation, the fastest on a CPU at these lengths.

    Args:
        family: "qwen3", or "qwen3.5" for two gated DeltaNet layers before each attention layer, and
            a draft head. A smaller MLP makes up for the larger layers.
        vocab_size: number of token ids.
        end: id of the token that ends an answer.
        pad: id of the token that fills rows.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    ids = {"vocab_size": vocab_size, "eos_token_id": end, "pad_token_id": pad}
    model = _qwen3(_SHAPE | ids) if family == "qwen3" else _qwen35(_SHAPE | ids)
    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "out_proj", "down_proj")):
            module.register_forward_hook(_drop)
    return model


def _qwen3(shape: dict[str, Any]) -> Qwen3ForCausalLM:
    config = Qwen3Config(**shape, intermediate_size=768, rope_theta=1e6)
    return Qwen3ForCausalLM(config)


def _qwen35(shape: dict[str, Any]) -> Qwen3_5ForCausalLM:
    config = Qwen3_5TextConfig(
        **shape,
        intermediate_size=640,
        layer_types=["linear_attention", "linear_attention", "full_attention"] * 2,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    )
    model = Qwen3_5ForCausalLM(config)
    model.mtp = DraftHead(config)
    for module in model.modules():
        if isinstance(module, Qwen3_5GatedDeltaNet):
            module.__class__ = GatedDeltaNet  # keeps the parameters that it has
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):  # decays of 0.001 to 0.1 a token times A, as in Mamba
            dt = torch.exp(torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(0.1)))
            parameter.data.copy_(dt + torch.log(-torch.expm1(-dt)))  # inverse of softplus
    check(model)
    return model


def _drop(module: Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Zero the same features of `output` (B L E) at every position of a row while training.

    The model soon knows the phrasings in the training data; dropout helps with all others. One mask
    per row is cheaper to draw than one per position.
    """
    if not module.training:
        return output
    kept = torch.full((output.shape[0], 1, output.shape[2]), 1 - DROPOUT, dtype=output.dtype)
    return output * (kept.bernoulli() / (1 - DROPOUT))


def named(model: Model) -> dict[str, Tensor]:
    """Return the model's own parameters by name, the draft head's behind `DRAFT_HEAD`.

    The head is the embedding, so it has no parameters of its own.
    """
    parameters = dict(model.model.named_parameters())
    if isinstance(model, Qwen3_5ForCausalLM):
        drafting = model.mtp.named_parameters()
        parameters |= {DRAFT_HEAD + name: parameter for name, parameter in drafting}
    return parameters


def parameters(model: Model, quantized: bool) -> dict[str, Tensor]:
    """Return the parameters by name; if `quantized`, matrices have the values of their 4-bit form.

    Gradients reach the model's own parameters in both cases.
    """
    return {
        name: fake_quantize(parameter) if quantized and parameter.ndim == 2 else parameter
        for name, parameter in named(model).items()
    }


def _causal(length: int) -> Tensor:
    return torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]


def hidden_states(model: Model, weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Return the hidden states (B L E) of `ids` (B L) after the final norm.

    Rows are padded on the right, so that a token never sees the padding.
    """
    inputs = {
        "input_ids": ids,
        "position_ids": torch.arange(ids.shape[1])[None],
        "attention_mask": {"full_attention": _causal(ids.shape[1]), "linear_attention": None},
        "use_cache": False,
    }
    own = {name: weight for name, weight in weights.items() if not name.startswith(DRAFT_HEAD)}
    hidden: Tensor = functional_call(model.model, own, kwargs=inputs).last_hidden_state
    return hidden


def draft_states(
    model: Qwen3_5ForCausalLM, weights: dict[str, Tensor], ids: Tensor, hidden: Tensor
) -> Tensor:
    """Return the draft head's states (B L E): those at t predict token t + 2.

    The last position of a row has no next token; its state means nothing.
    """
    following = ids.roll(-1, dims=1)
    embedded = weights[EMBEDDING][following]
    positions = torch.arange(ids.shape[1])[None]
    angles = model.model.rotary_emb(hidden, positions[None])
    own = {
        name.removeprefix(DRAFT_HEAD): weight
        for name, weight in weights.items()
        if name.startswith(DRAFT_HEAD)
    }
    mask = _causal(ids.shape[1])
    states: Tensor = functional_call(model.mtp, own, (embedded, hidden, angles, mask))
    return states


def logits(model: Model, weights: dict[str, Tensor], batch: Batch) -> Tensor:
    """Return the logits (N V) at the N positions of `batch` that predict a token of an answer.

    The head is not computed for the other positions.
    """
    hidden = hidden_states(model, weights, batch.ids)
    return linear(hidden.flatten(0, 1)[batch.positions], weights[EMBEDDING])


def loss(model: Model, weights: dict[str, Tensor], batch: Batch, bfloat16: bool) -> Tensor:
    """Weighted mean cross-entropy of the answers' N tokens, a scalar, with the draft head's.

    `bfloat16` leaves the matrix products to autocast; the cross-entropy itself is in float32.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        hidden = hidden_states(model, weights, batch.ids)
        scores = linear(hidden.flatten(0, 1)[batch.positions], weights[EMBEDDING])
        drafts = None
        if isinstance(model, Qwen3_5ForCausalLM):
            states = draft_states(model, weights, batch.ids, hidden)
            drafts = linear(states.flatten(0, 1)[batch.positions - 1], weights[EMBEDDING])
    total = _mean(scores, batch)
    # The token at position p + 1 is predicted at p, and drafted at p - 1.
    return total if drafts is None else total + DRAFT_WEIGHT * _mean(drafts, batch)


def _mean(scores: Tensor, batch: Batch) -> Tensor:
    each = cross_entropy(scores.float(), batch.targets, reduction="none")
    return (each * batch.weights).sum() / batch.weights.sum()
