"""Checkpoints of Qwen3. One model generates a scripted text, the other random letters."""

import json
import string
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

END = "<|im_end|>"
_CONTROL = ("<|endoftext|>", "<|im_start|>", END)
_HEAD_DIM = 32


class Vocabulary:
    """A vocabulary with a token for each byte, the control tokens, and tokens for given texts.

    Attributes:
        tokenizer: the tokenizer of the vocabulary.
        size: the number of rows of an embedding for the vocabulary, a multiple of 32.
    """

    def __init__(self, *texts: str) -> None:
        """Make a vocabulary in which each of `texts` is one token."""
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        model = models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
        self.tokenizer = tokenizers.Tokenizer(model)
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=False
        )
        self.tokenizer.decoder = decoders.ByteLevel()
        self.tokenizer.add_special_tokens(list(_CONTROL))
        self.tokenizer.add_tokens([text for text in texts if len(text) > 1 and text != END])
        self.size = -(-self.tokenizer.get_vocab_size() // 32) * 32

    def id(self, text: str) -> int:
        """Return the id of the token with this text."""
        return int(self.tokenizer.encode(text).ids[0])


def scripted_checkpoint(
    folder: Path, following: Mapping[str, str], template: str, *, context: int = 1024
) -> Path:
    """Write a Qwen3 checkpoint that generates the scripted successor of each token.

    The only layer of the model adds nothing. The embedding is one-hot, and the head maps each token
    to its successor.

    Args:
        folder: the folder to make.
        following: the successor of each token. Tokens and successors are added to the vocabulary.
        template: the chat template.
        context: the length of the context in tokens.

    Returns:
        The folder.
    """
    words = Vocabulary(*following, *following.values())
    size = words.size
    tensors = _tensors(size, heads=1, mlp=32, blocks=1)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensor = f"model.layers.0.{name}.weight"
        tensors[tensor] = mx.zeros(tensors[tensor].shape)
    tensors["model.embed_tokens.weight"] = mx.eye(size)
    head = mx.zeros((size, size))
    for text, after in following.items():
        head[words.id(after), words.id(text)] = 2.0
    tensors["lm_head.weight"] = head
    config = _config(words, size, heads=1, mlp=32, blocks=1, context=context)
    return _write(folder, words, config, tensors, template)


def random_checkpoint(folder: Path, template: str, *, context: int = 1024) -> Path:
    """Write a Qwen3 checkpoint with random weights, which generates letters and no end token.

    The tokenizer has no merges and the text has no spaces, so a generated text encodes to the same
    tokens again.

    Args:
        folder: the folder to make.
        template: the chat template.
        context: the length of the context in tokens.

    Returns:
        The folder.
    """
    words = Vocabulary()
    tensors = _tensors(64, heads=2, mlp=64, blocks=2)
    tensors["model.embed_tokens.weight"] = mx.random.normal((words.size, 64))
    head = mx.zeros((words.size, 64))
    for letter in string.ascii_letters:
        head[words.id(letter)] = mx.random.normal((64,))
    tensors["lm_head.weight"] = head
    config = _config(words, 64, heads=2, mlp=64, blocks=2, context=context)
    return _write(folder, words, config, tensors, template)


def _config(
    words: Vocabulary, width: int, *, heads: int, mlp: int, blocks: int, context: int
) -> dict[str, object]:
    return {
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": mlp,
        "max_position_embeddings": context,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "num_hidden_layers": blocks,
        "head_dim": _HEAD_DIM,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": words.size,
        "eos_token_id": words.id(END),
    }


def _tensors(width: int, *, heads: int, mlp: int, blocks: int) -> dict[str, mx.array]:
    """Return the tensors of the layers and the final norm: ones in norms, else random numbers."""
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_norm": (_HEAD_DIM,),
        "self_attn.k_norm": (_HEAD_DIM,),
        "self_attn.q_proj": (heads * _HEAD_DIM, width),
        "self_attn.k_proj": (_HEAD_DIM, width),
        "self_attn.v_proj": (_HEAD_DIM, width),
        "self_attn.o_proj": (width, heads * _HEAD_DIM),
        "mlp.gate_proj": (mlp, width),
        "mlp.up_proj": (mlp, width),
        "mlp.down_proj": (width, mlp),
    }
    mx.random.seed(7)
    tensors = {
        f"model.layers.{block}.{name}.weight": mx.ones(shape)
        if len(shape) == 1
        else mx.random.normal(shape) * 0.2
        for block in range(blocks)
        for name, shape in shapes.items()
    }
    tensors["model.norm.weight"] = mx.ones((width,))
    return tensors


def _write(
    folder: Path,
    words: Vocabulary,
    config: dict[str, object],
    tensors: dict[str, mx.array],
    template: str,
) -> Path:
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    (folder / "config.json").write_text(json.dumps(config))
    words.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": END, "chat_template": template})
    )
    return folder
