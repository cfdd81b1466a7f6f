"""The network: pico's shape, its parameters as a dictionary, and the loss on answers."""

import torch
import torch.nn.functional as F
from batches import Batch
from quantization import fake_quantize
from torch import Tensor
from torch.func import functional_call
from transformers import Qwen3Config, Qwen3ForCausalLM

EMBEDDING = "embed_tokens.weight"


def build(vocab_size: int, end: int, pad: int, seed: int) -> Qwen3ForCausalLM:
    """A fresh pico: Qwen3 with 5 M parameters, tied embedding, eager attention (the quickest on a CPU at these lengths)."""
    torch.manual_seed(seed)
    config = Qwen3Config(
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
    return Qwen3ForCausalLM(config)


def parameters(model: Qwen3ForCausalLM, quantized: bool) -> dict[str, Tensor]:
    """The body's parameters by name, as values; `quantized` gives matrices the values of their 4-bit form."""
    # Views, not the parameters themselves: torch.compile guards on identity, and would compile again for the quantized ones.
    named = model.model.named_parameters()
    return {
        name: fake_quantize(p) if quantized and p.ndim == 2 else p.view_as(p) for name, p in named
    }


def logits(model: Qwen3ForCausalLM, weights: dict[str, Tensor], batch: Batch) -> Tensor:
    """Logits (N V) at the places of `batch` from which an answer's token is predicted.

    Rows are padded on the right, so a causal mask keeps conversations and padding apart.
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
    return F.linear(hidden.flatten(0, 1)[batch.places], weights[EMBEDDING])


def loss(
    model: Qwen3ForCausalLM, weights: dict[str, Tensor], batch: Batch, bfloat16: bool
) -> Tensor:
    """Mean cross-entropy of the answers' tokens."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        scores = logits(model, weights, batch)
    return F.cross_entropy(scores.float(), batch.targets)
