"""Files of a served model: a checkpoint, and a GGUF file for llama.cpp."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import mlx.core as mx
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.config.json_object import read_json_object

from tinyllm_bench.errors import BenchError
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.peers.gguf import gguf_type, write_gguf
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import PICO


@dataclass(frozen=True)
class ModelFiles:
    """Files of a served model."""

    name: str  # name in the report
    folder: Path  # the checkpoint
    gguf: Path | None  # the same model for llama.cpp
    without_gguf: str = ""  # the reason if there is no GGUF file

    @classmethod
    def of_model(cls, model: str, gguf: Path | None) -> "ModelFiles":
        """Return the files of a checkpoint, which is downloaded if necessary.

        Raise `HubError` if it cannot be downloaded.
        """
        reason = "" if gguf else "it needs the model as --gguf FILE"
        return cls(model, resolve(model), gguf, reason)

    @classmethod
    def of_shape(cls, shape: str, bits: int | None, folder: Path, *, gguf: bool) -> "ModelFiles":
        """Write a model of random weights into a folder, and if requested a GGUF file."""
        dtype = "float32" if bits == 32 else "bfloat16"
        # Any OpSet without a layout of its own: the weights are only written to files.
        model = BenchModel.make(Settings(shape=shape, bits=bits, dtype=dtype, ops=["mlx"]))
        checkpoint = write_checkpoint(model, folder / "model")
        name, path = f"shape {shape}, random weights, {model.format}", folder / "model.gguf"
        if not gguf:
            return cls(name, checkpoint, None)
        try:
            write_gguf(path, model.config, gguf_type(model.format.bits), checkpoint)
        except BenchError as error:
            return cls(name, checkpoint, None, str(error))
        return cls(name, checkpoint, path)


def write_checkpoint(model: BenchModel, folder: Path) -> Path:
    """Write a model as mlx-lm would, with the tokenizer of pico.

    Tokens that pico does not have are numbered words, so that every sampled token is text.
    """
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(model.arrays()))
    (folder / "config.json").write_text(json.dumps(dict(model.hf)))
    pico = resolve(PICO)
    shutil.copy(pico / "tokenizer_config.json", folder)
    tokenizer = _padded(read_json_object(pico / "tokenizer.json"), model.config.vocab_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def _padded(tokenizer: dict[str, object], size: int) -> dict[str, object]:
    """Return a tokenizer with `size` tokens."""
    model = cast("dict[str, dict[str, int]]", tokenizer["model"])
    added = cast("list[dict[str, object]]", tokenizer["added_tokens"])
    # Added tokens must be in the vocabulary, too: otherwise they get new ids after its last one.
    vocab = model["vocab"] | {str(each["content"]): cast("int", each["id"]) for each in added}
    vocab |= {f"Ġt{token}": token for token in range(len(vocab), size)}
    return tokenizer | {"model": model | {"vocab": vocab}}
