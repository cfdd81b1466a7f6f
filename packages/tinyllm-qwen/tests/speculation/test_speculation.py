"""Draft tokens of the draft head change the speed of `generate`, and no bit of its result."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_layers import Batch, SequenceCache
from tinyllm_ops import MLX
from tinyllm_qwen import Piece, Qwen, SamplingParams, Tokenizer, generate, load
from tinyllm_qwen.speculation import Speculation
from tinyllm_qwen.testing import counting_model, hybrid_checkpoint

pytestmark = pytest.mark.usefixtures("unchecked")

Model = tuple[Qwen, Tokenizer]
PROMPT = [int(token) for token in mx.random.randint(0, 2041, (90,), key=mx.random.key(3))]
GREEDY = SamplingParams(top_logprobs=2)
DRAWN = SamplingParams(temperature=2.0, top_p=0.95, seed=3)
PENALIZED = SamplingParams(temperature=0.8, top_k=40, repetition_penalty=1.2, seed=4)
SAMPLINGS = pytest.mark.parametrize(
    "sampling", [GREEDY, DRAWN, PENALIZED], ids=["greedy", "drawn", "penalized"]
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small hybrid model with random weights, whose draft tokens are nearly always wrong."""
    folder = hybrid_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
    return load(folder, ops=MLX, draft_head=True)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return counting_model(tmp_path_factory.mktemp("models") / "counting", MLX)


def bits(pieces: Sequence[Piece]) -> list[tuple[object, ...]]:
    """Return all that a caller can see of pieces, apart from times."""
    return [(p.text, p.token, p.finish_reason, p.logprob, p.top_logprobs) for p in pieces]


def answer(model: Model, prompt: list[int] = PROMPT, **options: object) -> list[Piece]:
    return list(generate(*model, prompt, **({"max_tokens": 14} | options)))  # type: ignore[arg-type]


def known_drafts(tokens: list[int], seed: int) -> Callable[[Speculation, int], None]:
    """Return a `propose` that knows the answer `tokens`, and makes one token in three wrong."""
    draw = random.Random(seed)

    def propose(own: Speculation, limit: int) -> None:
        start = own._caches[0].offset + 1 - len(PROMPT)
        draft = tokens[start : start + draw.randrange(1 + min(own._limit, limit))]
        wrong = [0 if draw.random() < 0.34 else token for token in draft]
        own._draft = mx.array(wrong, dtype=mx.int32) if wrong else None

    return propose


@SAMPLINGS
@pytest.mark.parametrize("speculation", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_random_drafts_change_no_bit(
    model: Model, sampling: SamplingParams, speculation: int
) -> None:
    plain = answer(model, sampling=sampling)
    pieces = answer(model, sampling=sampling, num_speculative_tokens=speculation)
    assert bits(pieces) == bits(plain)
    assert pieces[-1].stats.draft_tokens >= 10 * speculation


@SAMPLINGS
def test_accepted_and_rejected_drafts_change_no_bit(
    model: Model, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, drafted, accepted = answer(model, sampling=sampling), 0, 0
    for seed, kv_bits in enumerate((None, None, 8)):
        cached = [model[0].make_caches(kv_bits=kv_bits) for _ in range(2)]
        if kv_bits is not None:
            plain = answer(model, sampling=sampling, caches=cached[0])
        tokens = [piece.token for piece in plain]
        with monkeypatch.context() as patched:
            patched.setattr(Speculation, "propose", known_drafts(tokens, seed))
            pieces = answer(model, sampling=sampling, num_speculative_tokens=5, caches=cached[1])
        assert bits(pieces) == bits(plain)
        assert {layer_cache.offset for layer_cache in cached[1]} == {len(PROMPT) + len(pieces) - 1}
        drafted += pieces[-1].stats.draft_tokens
        accepted += pieces[-1].stats.accepted_tokens
    assert drafted > accepted > 9


@SAMPLINGS
def test_a_head_that_is_right_is_accepted(counting: Model, sampling: SamplingParams) -> None:
    plain = answer(counting, sampling=sampling)
    pieces = answer(counting, sampling=sampling, num_speculative_tokens=4)
    assert bits(pieces) == bits(plain)
    stats = pieces[-1].stats
    assert stats.draft_tokens == stats.accepted_tokens == 10  # in 4 steps
    assert [p.token for p in plain] == [(PROMPT[-1] + 1 + n) % 2048 for n in range(14)]


def drafts_alone(model: Qwen, text: list[int], count: int, vocab_size: int) -> list[int]:
    """Return the draft tokens after a text, each computed from the beginning without a cache."""
    draft: list[int] = []
    batch = Batch.at(0, 1, len(text) - 1, "prefill")
    hidden = model.norm(model.hidden(mx.array([text[:-1]]), batch, model.make_caches()))
    for _ in range(count):
        batch = Batch.at(0, 1, hidden.shape[1], "prefill")
        following = mx.array([[*text, *draft][1:]])
        output = model.draft(following, hidden, batch, model.make_caches())[:, -1:]
        logits = model.project(output)[0, 0, :vocab_size]
        draft.append(int(mx.argmax(logits)))
        hidden = mx.concatenate([hidden, output], axis=1)
    return draft


def test_the_head_continues_with_its_own_output(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[int]] = []
    propose = Speculation.propose

    def recorded(own: Speculation, limit: int) -> None:
        propose(own, limit)
        found.append([] if own._draft is None else [int(token) for token in own._draft])

    monkeypatch.setattr(Speculation, "propose", recorded)
    text = [piece.token for piece in answer(model, max_tokens=6, num_speculative_tokens=3)]
    assert len(found) == 6  # no draft token was accepted
    for given, draft in enumerate(found[:2], 1):
        own = drafts_alone(model[0], PROMPT + text[:given], 3, model[1].vocab_size)
        assert draft == own


def test_a_stop_string_within_a_draft_ends_the_text(counting: Model) -> None:
    text = answer(counting, max_tokens=10)
    stop = "".join(piece.text for piece in text)[3:9]
    plain = answer(counting, stop=[stop])
    caches = counting[0].make_caches()
    pieces = answer(counting, stop=[stop], num_speculative_tokens=4, caches=caches)
    assert bits(pieces) == bits(plain)
    assert pieces[-1].finish_reason == "stop"
    assert {layer_cache.offset for layer_cache in caches} == {len(PROMPT) + len(pieces) - 1}


@pytest.mark.parametrize("read", [1, 2, 3, 7])
def test_a_closed_call_can_be_continued(counting: Model, read: int) -> None:
    plain = [piece.token for piece in answer(counting)]
    caches = counting[0].make_caches()
    pieces = generate(*counting, PROMPT, caches=caches, num_speculative_tokens=4)
    first = [next(pieces).token for _ in range(read)]
    pieces.close()
    assert {layer_cache.offset for layer_cache in caches} == {len(PROMPT) + read - 1}
    rest = answer(
        counting, PROMPT + first, caches=caches, num_speculative_tokens=4, max_tokens=14 - read
    )
    assert first + [piece.token for piece in rest] == plain
    assert rest[-1].stats.cached_tokens == len(PROMPT) + read - 1
    stats = rest[-1].stats
    assert stats.accepted_tokens == stats.draft_tokens > 0


def trimmed(model: Model, length: int) -> list[SequenceCache]:
    """Return caches of the first `length` tokens of PROMPT, after a call with other tokens."""
    caches = model[0].make_caches()
    answer(model, num_speculative_tokens=3, caches=caches)
    for layer_cache in caches:
        layer_cache.trim(length)
    return caches


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(1, marks=pytest.mark.exhaustive),
        7,
        pytest.param(512, marks=pytest.mark.exhaustive),
    ],
)
def test_a_prefix_in_the_cache_changes_no_bit(model: Model, chunk: int) -> None:
    prompt = [*PROMPT[:80], *PROMPT[:9]]
    plain = answer(model, prompt)
    caches = trimmed(model, 64)
    pieces = answer(model, prompt, caches=caches, prefill_chunk=chunk, num_speculative_tokens=3)
    assert [piece.token for piece in pieces] == [piece.token for piece in plain]
    assert pieces[-1].stats.cached_tokens == 64


def test_the_last_tokens_of_a_text_get_no_drafts(counting: Model) -> None:
    for count in (1, 2, 3):
        pieces = answer(counting, max_tokens=count, num_speculative_tokens=4)
        assert len(pieces) == count
        assert pieces[-1].stats.draft_tokens == max(0, count - 2)


def test_a_call_without_drafts_leaves_the_head_alone(model: Model) -> None:
    caches = model[0].make_caches()
    plain = answer(model, caches=caches)
    held = [layer_cache.offset for layer_cache in caches]
    assert held == [len(PROMPT) + len(plain) - 1] * 8 + [0]
    with pytest.raises(ValueError, match="expected equally many tokens in every layer"):
        answer(model, PROMPT * 2, caches=caches, num_speculative_tokens=1)
    with pytest.raises(ValueError, match=r"expected 9, .* one for the draft head .* got 8"):
        answer(model, caches=caches[:8])


def test_what_cannot_draft_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_speculative_tokens: expected at least 0, got -1"):
        answer(model, num_speculative_tokens=-1)
    with pytest.raises(ValueError, match=r"with a limited cache, got 2: .* leave out max_size"):
        answer(model, num_speculative_tokens=2, caches=model[0].make_caches(max_size=64))
    with pytest.raises(ValueError, match=r"model without a draft head, got 2: .*draft_head=True"):
        answer(load("pico"), num_speculative_tokens=2)
