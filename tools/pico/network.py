"""The network: pico's shape, its parameters as a dictionary, and the loss on answers."""

import torch
from batches import Batch
from quantization import fake_quantize
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.nn.functional import cross_entropy, linear
from transformers import Qwen3Config, Qwen3ForCausalLM

EMBEDDING = "embed_tokens.weight"
DROPOUT = 0.1
"""Share of features zeroed in training: in embeddings and in the outputs of attention and MLP."""


def build(vocab_size: int, end: int, pad: int, seed: int) -> Qwen3ForCausalLM:
    """Return a new pico: Qwen3 with 5 million parameters and a tied embedding.

    Attention is transformers' "eager" implementation, the fastest on a CPU at these lengths.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(  # type: ignore[call-arg]
        vocab_size=vocab_size,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=768,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config)
    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "down_proj")):
            module.register_forward_hook(_drop)
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


def parameters(model: Qwen3ForCausalLM, quantized: bool) -> dict[str, Tensor]:
    """Return the parameters by name; if `quantized`, matrices have the values of their 4-bit form.

    The head is the embedding, so it has no parameters of its own. Gradients reach the model's own
    parameters in both cases.
    """
    return {
        name: fake_quantize(parameter) if quantized and parameter.ndim == 2 else parameter
        for name, parameter in model.model.named_parameters()
    }


def logits(model: Qwen3ForCausalLM, weights: dict[str, Tensor], batch: Batch) -> Tensor:
    """Return the logits (N V) at the N positions of `batch` that predict a token of an answer.

    The head is not computed for the other places. Rows are padded on the right, so that the causal
    mask hides the padding from all that stands before it.
    """
    length = batch.ids.shape[1]
    mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
    inputs = {
        "input_ids": batch.ids,
        "position_ids": torch.arange(length)[None],
        "attention_mask": {"full_attention": mask},
        "use_cache": False,
    }
    hidden = functional_call(model.model, weights, kwargs=inputs).last_hidden_state  # B L E
    return linear(hidden.flatten(0, 1)[batch.places], weights[EMBEDDING])


def loss(
    model: Qwen3ForCausalLM, weights: dict[str, Tensor], batch: Batch, bfloat16: bool
) -> Tensor:
    """Weighted mean cross-entropy of the answers' N tokens, a scalar.

    `bfloat16` leaves the matrix products to autocast; the cross-entropy itself is in float32.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        scores = logits(model, weights, batch)
    each = cross_entropy(scores.float(), batch.targets, reduction="none")
    return (each * batch.weights).sum() / batch.weights.sum()
