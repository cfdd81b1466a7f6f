"""A model that counts, whose draft head is right."""

from pathlib import Path

import mlx.core as mx
from tinyllm_ops import OpSet

from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.testing.hybrid import SHAPES, hybrid_checkpoint
from tinyllm_qwen.text.tokenizer import Tokenizer

_OUTPUTS = ("o_proj.weight", "out_proj.weight", "down_proj.weight")


def counting_model(folder: Path, ops: OpSet) -> tuple[Qwen, Tokenizer]:
    """Make a small hybrid model that counts: after token n it chooses token n + 1, modulo V.

    The draft head counts too, so that its draft tokens are accepted, unless a sampler with a high
    temperature chooses another token. Row n + 1 of the output head is the embedding of token n. All
    layers change the hidden states a little, so that the bits of the logits depend on every earlier
    token. The projection of the draft head passes the embedding of the next token on, without the
    hidden state.

    Args:
        folder: the folder to make, for a checkpoint with the tokenizer and with the random weights
            of the layers.
        ops: the implementation of the maths.
    """
    hybrid_checkpoint(folder, {**SHAPES["tiny"], "tie_word_embeddings": False})
    config = QwenConfig.from_folder(folder)
    weights = load_weights(folder, config, dtype=mx.float32, draft_head=True)
    for name, weight in weights.items():
        assert isinstance(weight, mx.array)
        if name.endswith(_OUTPUTS):
            weights[name] = 0.05 * weight
        elif weight.ndim == 1 and "norm" in name:
            weights[name] = mx.ones_like(weight)
    embedding, width = weights["embed_tokens.weight"], config.hidden_size
    assert isinstance(embedding, mx.array)
    weights["embed_tokens.weight"] = 10 * embedding
    weights["lm_head.weight"] = 2.5 * mx.concatenate([embedding[-1:], embedding[:-1]])
    weights["mtp.fc.weight"] = mx.concatenate([mx.eye(width), mx.zeros((width, width))], axis=1)
    return Qwen(config, weights, ops=ops), Tokenizer.from_folder(folder)
