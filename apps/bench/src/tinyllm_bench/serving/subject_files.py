"""The model under load, in files: servers are given paths."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import mlx.core as mx
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.config.json_object import read_json_object

from tinyllm_bench.errors import BenchError
from tinyllm_bench.peers.gguf_file import TYPES, write_gguf
from tinyllm_bench.peers.gguf_vocabulary import GgufVocabulary
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import PICO
from tinyllm_bench.subject import Subject


@dataclass(frozen=True)
class SubjectFiles:
    """A model that is served.

    Attributes:
        name: for the report.
        folder: the checkpoint.
        gguf: the same for llama.cpp.
        without_gguf: why there is none; empty if there is one.
    """

    name: str
    folder: Path
    gguf: Path | None
    without_gguf: str = ""

    @classmethod
    def of_model(cls, model: str, gguf: Path | None) -> "SubjectFiles":
        """A checkpoint that is there, or can be fetched.

        Raises:
            HubError: if it cannot.
        """
        why = "" if gguf else "it needs the model as --gguf FILE"
        return cls(model, resolve(model), gguf, why)

    @classmethod
    def of_shape(cls, shape: str, bits: int | None, folder: Path, *, gguf: bool) -> "SubjectFiles":
        """Write a model of random weights.

        Args:
            shape: of `published_config`.
            bits: of a weight; None is 4.
            folder: where the files may lie until the run ends.
            gguf: whether they are to have a GGUF file beside them: random too, of the same shape.

        Raises:
            BenchError: if it does not fit into memory.
            UsageError: if there is no such shape, or it does not go with `bits`.
        """
        settings = Settings(shape=shape, bits=bits, dtype="float32" if bits == 32 else "bfloat16")
        subject = Subject.make(settings)
        checkpoint = write_checkpoint(subject, folder / "model")
        name, path = f"shape {shape}, random weights, {subject.form}", folder / "model.gguf"
        if not gguf:
            return cls(name, checkpoint, None)
        try:
            kind = TYPES.get(subject.form.bits)
            if kind is None:
                known = ", ".join(map(str, TYPES))
                raise BenchError(f"it is compared at {known} bits, not at {subject.form.bits}")
            vocabulary = GgufVocabulary.from_folder(checkpoint, subject.config.vocab_size)
            write_gguf(path, subject.config, kind, vocabulary)
        except BenchError as error:
            return cls(name, checkpoint, None, str(error))
        return cls(name, checkpoint, path)


def write_checkpoint(subject: Subject, folder: Path) -> Path:
    """Write a model as mlx-lm would, with the tokenizer of the built-in one.

    Tokens that pico does not have are words without a meaning, so that whatever random weights say
    is text, which a client can see.

    Args:
        subject: the model.
        folder: to be made.
    """
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(subject.arrays()))
    (folder / "config.json").write_text(json.dumps(dict(subject.hf)))
    pico = resolve(PICO)
    shutil.copy(pico / "tokenizer_config.json", folder)
    tokenizer = _padded(read_json_object(pico / "tokenizer.json"), subject.config.vocab_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def _padded(tokenizer: dict[str, object], size: int) -> dict[str, object]:
    """A tokenizer with as many tokens as an embedding has rows."""
    model = cast("dict[str, dict[str, int]]", tokenizer["model"])
    added = cast("list[dict[str, object]]", tokenizer["added_tokens"])
    # Added tokens stand in the vocabulary too: otherwise they would get the ids after its last.
    vocab = model["vocab"] | {str(each["content"]): cast("int", each["id"]) for each in added}
    vocab |= {f"Ġt{token}": token for token in range(len(vocab), size)}
    return tokenizer | {"model": model | {"vocab": vocab}}
