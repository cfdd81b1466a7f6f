"""Readers of files from untrusted sources, each called with a folder."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from tinyllm_chat import transcript
from tinyllm_chat.errors import ChatError
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.kv.prefix_store import PrefixStore
from tinyllm_engine.kv.snapshot_store import SnapshotStore
from tinyllm_layers import PagedCache, RecurrentPool, StateShape
from tinyllm_qwen import GenerationConfig, Qwen, QwenConfig, Tokenizer
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.safetensors_file import read_header
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.checkpoint.shards import INDEX, find_shards
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.errors import CheckpointError, TemplateError
from tinyllm_qwen.text.chat_template import ChatTemplate

CORPUS = Path(__file__).parent / "corpus"

MAX_MESSAGE = 4000
"""Largest length of the message of an error, which is a line of a log."""

# A question, an answer with a tool call and its result: every branch of a template is reached.
_TURNS: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "ho",
        "reasoning_content": "so",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, "b"]}}}],
    },
    {"role": "tool", "content": "7"},
]
_TOOLS: list[dict[str, object]] = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
]


@dataclass(frozen=True)
class Target:
    """A reader of one kind of file.

    Attributes:
        file: the name of the file.
        read: reads the file in a folder. It raises only CheckpointError, TemplateError and
            ChatError.
        others: the contents of other files that the reader needs, by name.
    """

    file: str
    read: Callable[[Path], None]
    others: Mapping[str, bytes]

    def check(self, folder: Path, data: bytes) -> None:
        """Write the file to a folder, and read it.

        Raises:
            Exception: if the reader raises another error, or breaks a promise about an accepted
                file.
        """
        for name, text in self.others.items():
            (folder / name).write_bytes(text)
        (folder / self.file).write_bytes(data)
        try:
            self.read(folder)
        except (CheckpointError, TemplateError, ChatError) as error:
            if len(str(error)) > MAX_MESSAGE:
                raise AssertionError(f"a message of {len(str(error))} characters") from None


def _weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    try:
        entries = read_header(path)
    except CheckpointError as error:
        if not str(error).isprintable():
            raise AssertionError("a message has control characters of the file") from None
        raise
    arrays = mx.load(str(path), format="safetensors")  # MLX reads each file that was accepted
    assert {name: tuple(array.shape) for name, array in arrays.items()} == {
        name: entry.shape for name, entry in entries.items()
    }
    mx.eval(arrays)


def _config(folder: Path) -> None:
    config = QwenConfig.from_folder(folder)
    assert 0 < len(expected_shapes(config)) < 50_000
    assert config.context_length >= 1


def _model(folder: Path) -> None:
    config = QwenConfig.from_folder(folder)
    logits = Qwen(config, load_weights(folder, config))(mx.array([[1]]))
    assert logits.shape == (1, 1, config.vocab_size)
    assert mx.all(mx.isfinite(logits))


def _generation(folder: Path) -> None:
    config = GenerationConfig.from_folder(folder)
    assert 0 <= config.min_p <= 1
    assert 0 < config.top_p <= 1
    assert 0 <= config.temperature <= 100


def _index(folder: Path) -> None:
    assert {shard.parent for shard in find_shards(folder)} == {folder}


def _tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("abc abcdefgh <|im_end|>\u00e9 12")
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    tokenizer.decode(ids)


def _template(folder: Path) -> None:
    template = ChatTemplate.from_folder(folder)
    assert template is not None
    template.render(_TURNS, tools=_TOOLS)


def _tokenizer_config(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.chat_template is not None:
        tokenizer.chat_template.render(_TURNS)


def prefix_store() -> tuple[PrefixStore, BlockManager, SnapshotStore]:
    """Make the store of two layers: one with 4 pages of 2 tokens, one with 3 slots of states.

    Returns:
        The store, its pages, and its 2 slots for snapshots.
    """
    pages, snapshots = BlockManager(4, 2), SnapshotStore(range(1, 3))
    shape = StateShape(kernel=4, channels=2, num_heads=1, value_dim=2, key_dim=2, dtype=mx.float32)
    caches: list[PagedCache | RecurrentPool] = [
        PagedCache.empty((4, 1, 2, 4), mx.float32),
        RecurrentPool.empty(3, shape),
    ]
    return PrefixStore(pages, snapshots, caches, "fuzz"), pages, snapshots


def _prefixes(folder: Path) -> None:
    store, pages, snapshots = prefix_store()
    loaded = store.load(folder / "prefixes")
    assert 0 <= loaded <= 4
    assert pages.available == 4
    assert snapshots.held == 0
    assert snapshots.count <= min(loaded, 2)
    if not loaded:
        raise CheckpointError("the log has the reason")


def _transcript(folder: Path) -> None:
    transcript.load(folder / "chat.json")


def corpus(name: str) -> dict[str, bytes]:
    """Return the files of the corpus of a target by name: valid files and past findings."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


def _random_weights() -> bytes:
    """Return the weights of a model with the valid config of the target "model"."""
    config = QwenConfig.from_hf(json.loads(corpus("model")["valid"]))
    key = mx.random.key(0)
    tensors = {
        f"model.{name}": mx.random.normal(shape, key=key)
        for name, shape in expected_shapes(config).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        mx.save_safetensors(str(path), tensors)
        return path.read_bytes()


def _small_tokenizer() -> bytes:
    """Return the tokenizer of pico with a vocabulary of nine tokens."""
    document = json.loads((resolve("pico") / "tokenizer.json").read_bytes())
    vocab = {letter: i for i, letter in enumerate("abcdefgh")} | {"ab": 8}
    model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]}
    return json.dumps(document | {"added_tokens": [], "model": model}).encode()


TARGETS = {
    "weights": Target("model.safetensors", _weights, {}),
    "config": Target("config.json", _config, {}),
    "model": Target("config.json", _model, {"model.safetensors": _random_weights()}),
    "index": Target(INDEX, _index, {f"{name}.safetensors": b"" for name in "ab"}),
    "generation": Target("generation_config.json", _generation, {}),
    "tokenizer": Target("tokenizer.json", _tokenizer, {}),
    "tokenizer_config": Target(
        "tokenizer_config.json", _tokenizer_config, {"tokenizer.json": _small_tokenizer()}
    ),
    "template": Target("chat_template.jinja", _template, {}),
    "prefixes": Target("prefixes", _prefixes, {}),
    "transcript": Target("chat.json", _transcript, {}),
}
