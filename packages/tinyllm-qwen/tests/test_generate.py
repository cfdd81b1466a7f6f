"""generate() streams the tokens that the model gives without a cache. Caches stay usable."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
import tokenizers
from tinyllm_layers import Batch, SequenceCache
from tinyllm_ops import MLX
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.generate import generate
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.text.tokenizer import Tokenizer
from tokenizers import decoders, models, pre_tokenizers

GOLDEN = Path(__file__).parent / "goldens" / "models" / "qwen3"
PROMPT = [5, 80, 33, 33, 12, 150, 7]


@pytest.fixture(scope="module")
def model() -> Qwen:
    config = QwenConfig.from_folder(GOLDEN)
    return Qwen(config, load_weights(GOLDEN, config), ops=MLX)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with one token for each of 160 bytes, and no end token."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())[:160]
    made = tokenizers.Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return Tokenizer.from_folder(folder)


def cacheless(model: Qwen, prompt: Sequence[int], steps: int) -> list[int]:
    """Return the greedy continuation, computing the whole text again for each token."""
    text = list(prompt)
    for _ in range(steps):
        text.append(int(mx.argmax(model(mx.array([text]))[0, -1])))
    return text[len(prompt) :]


@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 512])
def test_greedy_is_the_cacheless_model_for_any_prefill_chunk(
    model: Qwen, tokenizer: Tokenizer, chunk: int
) -> None:
    pieces = list(generate(model, tokenizer, PROMPT, max_tokens=24, prefill_chunk=chunk))
    assert [piece.token for piece in pieces] == cacheless(model, PROMPT, 24)


def test_the_text_is_that_of_all_tokens_at_once(model: Qwen, tokenizer: Tokenizer) -> None:
    pieces = list(generate(model, tokenizer, PROMPT, max_tokens=40))
    tokens = [piece.token for piece in pieces]
    assert "".join(piece.text for piece in pieces) == tokenizer.decode(tokens)


def test_only_the_last_piece_has_a_finish_reason(model: Qwen, tokenizer: Tokenizer) -> None:
    pieces = list(generate(model, tokenizer, PROMPT, max_tokens=5))
    assert [piece.finish_reason for piece in pieces] == [None] * 4 + ["length"]


def test_an_end_token_ends_the_text_and_is_not_shown(model: Qwen, tokenizer: Tokenizer) -> None:
    plain = [piece.token for piece in generate(model, tokenizer, PROMPT, max_tokens=24)]
    end = plain[9]
    ending = Tokenizer.__new__(Tokenizer)
    ending.__dict__.update(tokenizer.__dict__)
    ending.eos_token_ids = frozenset({end})
    pieces = list(generate(model, ending, PROMPT, max_tokens=24))
    first = plain.index(end)
    assert [piece.token for piece in pieces] == plain[: first + 1]
    assert pieces[-1].finish_reason == "stop"
    assert "".join(piece.text for piece in pieces) == tokenizer.decode(plain[:first])


def test_the_text_ends_before_a_stop_string(model: Qwen, tokenizer: Tokenizer) -> None:
    whole = "".join(piece.text for piece in generate(model, tokenizer, PROMPT, max_tokens=40))
    stop = whole[10:13]
    pieces = list(generate(model, tokenizer, PROMPT, max_tokens=40, stop=[stop]))
    assert "".join(piece.text for piece in pieces) == whole[: whole.index(stop)]
    assert pieces[-1].finish_reason == "stop"


def test_logprobs_are_those_of_the_raw_logits(model: Qwen, tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(top_logprobs=3)
    pieces = list(generate(model, tokenizer, PROMPT, max_tokens=3, sampling=sampling))
    text = [*PROMPT, *(piece.token for piece in pieces)]
    logits = model(mx.array([text]))[0].astype(mx.float32)
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    for i, piece in enumerate(pieces):
        row = expected[len(PROMPT) - 1 + i]
        assert piece.logprob == pytest.approx(float(row[piece.token]), abs=1e-4)
        assert piece.top_logprobs[0][0] == piece.token
        assert [p for _, p in piece.top_logprobs] == sorted(
            (p for _, p in piece.top_logprobs), reverse=True
        )


def test_a_seed_repeats_and_another_differs(model: Qwen, tokenizer: Tokenizer) -> None:
    def sampled(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=2.0, seed=seed)
        pieces = generate(model, tokenizer, PROMPT, max_tokens=12, sampling=sampling)
        return [piece.token for piece in pieces]

    assert sampled(1) == sampled(1) != sampled(2)


def continued(
    model: Qwen, tokenizer: Tokenizer, caches: list[SequenceCache], prompt: list[int]
) -> tuple[list[int], int]:
    pieces = list(generate(model, tokenizer, prompt, max_tokens=8, caches=caches))
    return [piece.token for piece in pieces], pieces[-1].stats.cached_tokens


def test_a_second_turn_computes_only_the_new_tokens(model: Qwen, tokenizer: Tokenizer) -> None:
    caches = model.make_caches()
    first, cached = continued(model, tokenizer, caches, PROMPT)
    assert cached == 0
    assert caches[0].offset == len(PROMPT) + len(first) - 1
    longer = [*PROMPT, *first, 4, 9, 100]
    second, cached = continued(model, tokenizer, caches, longer)
    assert cached == len(PROMPT) + len(first) - 1
    assert second == cacheless(model, longer, 8)


def test_a_closed_generation_leaves_the_cache_at_the_last_token_given(
    model: Qwen, tokenizer: Tokenizer
) -> None:
    caches = model.make_caches()
    pieces = generate(model, tokenizer, PROMPT, max_tokens=100, caches=caches)
    given = [next(pieces).token for _ in range(5)]
    pieces.close()
    assert {layer_cache.offset for layer_cache in caches} == {len(PROMPT) + 4}
    again, _ = continued(model, tokenizer, caches, [*PROMPT, *given])
    assert again == cacheless(model, [*PROMPT, *given], 8)


def test_a_one_token_prompt_works(model: Qwen, tokenizer: Tokenizer) -> None:
    pieces = list(generate(model, tokenizer, [7], max_tokens=4))
    assert [piece.token for piece in pieces] == cacheless(model, [7], 4)


def test_counts_and_progress(model: Qwen, tokenizer: Tokenizer) -> None:
    seen: list[tuple[int, int]] = []
    pieces = list(
        generate(
            model,
            tokenizer,
            PROMPT,
            max_tokens=3,
            prefill_chunk=4,
            on_prefill=lambda done, total: seen.append((done, total)),
        )
    )
    assert seen == [(4, 7), (7, 7)]
    stats = pieces[-1].stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (7, 0, 3)
    assert stats.prefill_seconds > 0
    assert stats.decode_seconds > 0
    assert stats.decode_rate == pytest.approx(2 / stats.decode_seconds)


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_the_arrays_of_a_long_prompt_do_not_grow(
    model: Qwen, tokenizer: Tokenizer, kv_bits: int | None
) -> None:
    caches, capacities = model.make_caches(kv_bits=kv_bits), []

    def observe(_done: int, _all: int) -> None:
        capacities.append(caches[0].arrays[0].shape[-2])

    prompt = [1, 2, 3] * 100
    pieces = generate(
        model, tokenizer, prompt, max_tokens=1, caches=caches, prefill_chunk=64, on_prefill=observe
    )
    assert len(list(pieces)) == 1
    assert len(capacities) == 5
    assert len({*capacities}) == 1


def test_the_context_bounds_the_answer(model: Qwen, tokenizer: Tokenizer) -> None:
    context = model.config.max_position_embeddings
    prompt = [3] * (context - 2)
    pieces = list(generate(model, tokenizer, prompt, max_tokens=100))
    assert len(pieces) == 2
    assert pieces[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "prefill_chunk", "message"),
    [
        ([], 1, 1, "at least one token, got none"),
        ([160], 1, 1, "token ids from 0 to 159, got 160 to 160"),
        ([-1, 3], 1, 1, "token ids from 0 to 159, got -1 to 3"),
        ([1] * 512, 1, 1, "fewer tokens than the model's context of 512, got 512: shorten it"),
        ([1], 0, 1, "max_tokens: expected at least 1, got 0"),
        ([1], 1, 0, "prefill_chunk: expected at least 1, got 0"),
    ],
)
def test_bad_input_is_refused_by_the_call_itself(
    model: Qwen,
    tokenizer: Tokenizer,
    prompt: list[int],
    max_tokens: int,
    prefill_chunk: int,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        generate(model, tokenizer, prompt, max_tokens=max_tokens, prefill_chunk=prefill_chunk)


def test_a_cache_that_covers_the_prompt_is_refused(model: Qwen, tokenizer: Tokenizer) -> None:
    caches = model.make_caches()
    model(mx.array([PROMPT]), caches)
    with pytest.raises(ValueError, match="fewer tokens than the prompt's 7, got 7"):
        generate(model, tokenizer, PROMPT, caches=caches)


@pytest.mark.parametrize("kind", [{"kv_bits": 8}, {"max_size": 40}], ids=str)
def test_a_second_turn_continues_in_every_kind_of_cache(
    model: Qwen, tokenizer: Tokenizer, kind: dict[str, int]
) -> None:
    caches = model.make_caches(**kind)
    first, _ = continued(model, tokenizer, caches, PROMPT)
    longer = [*PROMPT, *first, 4, 9, 100]
    second, cached = continued(model, tokenizer, caches, longer)
    fresh, _ = continued(model, tokenizer, model.make_caches(**kind), longer)
    assert cached == len(PROMPT) + len(first) - 1
    assert second == fresh


class InterruptedStepError(Exception):
    pass


def test_an_interrupt_within_a_forward_pass_leaves_the_layers_in_step(
    model: Qwen, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = model.make_caches()
    continued(model, tokenizer, caches, PROMPT)
    held = caches[0].offset

    def interrupted(x: mx.array, batch: Batch, caches: list[SequenceCache]) -> mx.array:
        model.layers[0](x, batch, caches[0])
        raise InterruptedStepError

    monkeypatch.setattr(model, "stack", interrupted)
    with pytest.raises(InterruptedStepError):
        list(generate(model, tokenizer, [*PROMPT, *range(30)], caches=caches))
    monkeypatch.undo()
    assert {layer_cache.offset for layer_cache in caches} == {held}


def test_caches_that_are_out_of_step_are_refused(model: Qwen, tokenizer: Tokenizer) -> None:
    caches = model.make_caches()
    model(mx.array([PROMPT[:3]]), caches)
    caches[1].trim(2)
    with pytest.raises(ValueError, match=r"equally many tokens in every layer, got \[2, 3\]"):
        generate(model, tokenizer, PROMPT, caches=caches)
    with pytest.raises(ValueError, match=r"expected 2, one per layer .* got 0"):
        generate(model, tokenizer, PROMPT, caches=[])


def test_one_stop_string_in_place_of_a_list_is_refused(model: Qwen, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="expected a list of them, got the string 'END'"):
        generate(model, tokenizer, PROMPT, stop="END")


@pytest.mark.usefixtures("unchecked")
def test_ids_of_numpy_are_those_of_python(model: Qwen, tokenizer: Tokenizer) -> None:
    first, second = (
        [piece.token for piece in generate(model, tokenizer, prompt, max_tokens=4)]
        for prompt in ([1, 2, 3], cast("list[int]", np.array([1, 2, 3])))
    )
    assert first == second


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prompt", [b"text", [1.5], [[1, 2]], [{"role": "user"}], 7, None])
def test_a_prompt_that_is_not_of_token_ids_is_refused(
    model: Qwen, tokenizer: Tokenizer, prompt: Any
) -> None:
    with pytest.raises(ValueError, match=r"prompt: expected a text or token ids.*chat_template"):
        generate(model, tokenizer, prompt)
