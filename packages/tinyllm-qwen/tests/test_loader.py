"""load() turns a folder into a model and a tokenizer, and checks that they belong together."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
import tokenizers
from tinyllm_ops import MLX, REFERENCE, OpSet
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.loader import load
from tokenizers import decoders, models, pre_tokenizers

MakeCheckpoint = Callable[..., Any]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def add_tokenizer(checkpoint: Any) -> Any:
    """Write a tokenizer with one token per byte into the folder of the checkpoint."""
    model = models.BPE(vocab={symbol: i for i, symbol in enumerate(ALPHABET)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(checkpoint.folder / "tokenizer.json"))
    (checkpoint.folder / "tokenizer_config.json").write_text("{}")
    return checkpoint


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_folder_becomes_a_model_and_its_tokenizer(
    random_checkpoint: MakeCheckpoint, family: str
) -> None:
    made = add_tokenizer(random_checkpoint(family, vocab_size=300).fill(mx.float32).save())
    model, tokenizer = load(made.folder)
    ids = tokenizer.encode("to be")
    logits = model(mx.array([ids]))
    assert logits.shape == (1, 5, 300)
    assert mx.all(mx.isfinite(logits))
    assert tokenizer.decode(ids) == "to be"


def test_both_opsets_give_the_same_logits(random_checkpoint: MakeCheckpoint) -> None:
    made = add_tokenizer(random_checkpoint(vocab_size=300).fill(mx.float32).save())

    def logits(ops: OpSet) -> mx.array:
        return load(str(made.folder), ops=ops)[0](mx.array([[1, 2, 3]]))

    assert mx.allclose(logits(REFERENCE), logits(MLX), rtol=1e-3, atol=1e-3)


def test_dtype_reaches_the_logits(random_checkpoint: MakeCheckpoint) -> None:
    made = add_tokenizer(random_checkpoint(vocab_size=300).fill(mx.bfloat16).save())
    assert load(made.folder)[0](mx.array([[1]])).dtype == mx.bfloat16
    assert load(made.folder, dtype=mx.float32)[0](mx.array([[1]])).dtype == mx.float32


def test_a_tokenizer_of_more_tokens_than_the_embedding_has_rows_is_refused(
    random_checkpoint: MakeCheckpoint,
) -> None:
    made = add_tokenizer(random_checkpoint(vocab_size=255).fill().save())
    with pytest.raises(CheckpointError, match="tokenizer has 256 tokens, the embedding 255 rows"):
        load(made.folder)


def test_a_folder_without_config_is_refused_before_anything_is_read(
    random_checkpoint: MakeCheckpoint,
) -> None:
    made = add_tokenizer(random_checkpoint(vocab_size=300).fill().save())
    (made.folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load(made.folder)


def test_progress_is_passed_on(random_checkpoint: MakeCheckpoint) -> None:
    made = add_tokenizer(random_checkpoint(vocab_size=300).fill().save())
    calls: list[tuple[int, int]] = []
    load(made.folder, progress=lambda *call: calls.append(call))
    assert calls[-1][0] == calls[-1][1] > 0
