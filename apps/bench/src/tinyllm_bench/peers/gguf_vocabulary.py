"""The tokens that a GGUF file tells llama.cpp."""

from dataclasses import dataclass, field
from pathlib import Path

from tinyllm_qwen.config.json_object import read_json_object

from tinyllm_bench.errors import BenchError


@dataclass(frozen=True)
class GgufVocabulary:
    """A byte-level BPE vocabulary, in the letters of GPT-2.

    Attributes:
        tokens: by their ids.
        merges: pairs of tokens that become one, each as "left right"; the first come first.
        control: ids that steer and are not text.
    """

    tokens: list[str]
    merges: list[str]
    control: frozenset[int] = field(default=frozenset())

    @classmethod
    def nameless(cls, size: int) -> "GgufVocabulary":
        """Names that nobody will read: for models that are given ids."""
        return cls([f"t{i}" for i in range(size)], ["t 0"])

    @classmethod
    def from_folder(cls, folder: Path, size: int) -> "GgufVocabulary":
        """That of a checkpoint's tokenizer.json, with nameless tokens up to `size`.

        Raises:
            BenchError: if it is not of byte-level BPE.
        """
        document = read_json_object(folder / "tokenizer.json")
        model, added = document.get("model"), document.get("added_tokens")
        match model, added:
            case {"vocab": dict() as vocab, "merges": list() as merges}, list():
                tokens = cls.nameless(size).tokens
                for text, token in vocab.items():
                    tokens[token] = text
                for token in added:
                    tokens[token["id"]] = token["content"]
                pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
                control = frozenset(token["id"] for token in added if token["special"])
                return cls(tokens, pairs, control)
        raise BenchError(f"{folder}: llama.cpp is given tokenizers of byte-level BPE alone")
