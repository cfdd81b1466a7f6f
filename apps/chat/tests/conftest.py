"""Tiny checkpoints: one that says what a script has it say, and one of random weights."""

import io
import itertools
import json
import os
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import mlx.core as mx
import pytest
import tokenizers
from tinyllm_chat.assistant import Assistant
from tinyllm_chat.session import Session
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal import Terminal
from tokenizers import decoders, models, pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = string.ascii_letters
# Qwen3's in short: thinking of earlier turns is dropped, and enable_thinking=false forestalls it.
TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think></think>' }}{%- endif %}"
)
# After this token comes that one; the last of a prompt is "\n", or "</think>" without thinking.
SCRIPT = ["\n", "<think>", "Hm.", "</think>", " It is ", "so.", "<|im_end|>"]


class Vocabulary:
    """One token a byte, the control tokens, and those of the script."""

    def __init__(self) -> None:
        model = models.BPE(vocab={symbol: i for i, symbol in enumerate(BYTES)}, merges=[])
        self.tokenizer = tokenizers.Tokenizer(model)
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=False
        )
        self.tokenizer.decoder = decoders.ByteLevel()
        self.tokenizer.add_special_tokens(CONTROL)
        self.tokenizer.add_tokens([text for text in SCRIPT if text != "\n" and "<|" not in text])
        self.size = -(-self.tokenizer.get_vocab_size() // 32) * 32

    def id(self, text: str) -> int:
        return self.tokenizer.encode(text).ids[0]


def make_checkpoint(
    folder: Path, *, scripted: bool, advice: dict[str, object] | None = None, context: int = 1024
) -> Path:
    """Write a Qwen3 of one or two blocks."""
    folder.mkdir()
    words = Vocabulary()
    width, heads, mlp, blocks = (words.size, 1, 32, 1) if scripted else (64, 2, 64, 2)
    config: dict[str, object] = {
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": mlp,
        "max_position_embeddings": context,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "num_hidden_layers": blocks,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": words.size,
        "eos_token_id": words.id("<|im_end|>"),
    }
    shapes = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_norm": (32,),
        "self_attn.k_norm": (32,),
        "self_attn.q_proj": (heads * 32, width),
        "self_attn.k_proj": (32, width),
        "self_attn.v_proj": (32, width),
        "self_attn.o_proj": (width, heads * 32),
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
    tensors["model.embed_tokens.weight"] = mx.random.normal((words.size, width))
    if scripted:
        # The blocks add nothing, so that a token's own embedding, one hot, chooses the next.
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"model.layers.0.{name}.weight"] = mx.zeros(shapes[name])
        tensors["model.embed_tokens.weight"] = mx.eye(words.size)
        head = mx.zeros((words.size, words.size))
        for text, following in itertools.pairwise(SCRIPT):
            head[words.id(following), words.id(text)] = 2.0
    else:
        # It says letters alone, and its text is the same tokens again: no merges, no spaces.
        head = mx.zeros((words.size, width))
        for letter in LETTERS:
            head[words.id(letter)] = mx.random.normal((width,))
    tensors["lm_head.weight"] = head
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    (folder / "config.json").write_text(json.dumps(config))
    words.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    )
    if advice is not None:
        (folder / "generation_config.json").write_text(json.dumps(advice))
    return folder


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that thinks "Hm." and answers "It is so."."""
    return str(make_checkpoint(tmp_path_factory.mktemp("models") / "scripted", scripted=True))


@pytest.fixture(scope="session")
def random(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that says letters without end."""
    return str(make_checkpoint(tmp_path_factory.mktemp("models") / "random", scripted=False))


class Screen(io.StringIO, TextIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def screen() -> type[Screen]:
    """Make a stream; `terminal` says whether it is one."""
    return Screen


class Talk:
    """A session, and what it wrote."""

    def __init__(self, settings: Settings) -> None:
        self.out, self.err = Screen(), Screen()
        self.assistant = Assistant.load(settings)
        self.session = Session(self.assistant, Terminal(self.out, self.err, {}))


@pytest.fixture
def talk() -> Callable[..., Talk]:
    """Start a session with a model and options."""
    return lambda model, **options: Talk(Settings(model=model, **options))


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def chat(tmp_path: Path) -> Run:
    """Run `chat` as a process, with nothing on stdin unless told."""

    def run(*arguments: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", "from tinyllm_chat.cli import main; exit(main())", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=120,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", **environ},
        )

    return run
