"""Caches of hybrid models: the kind of each layer, and generation that continues earlier calls."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_layers import (
    Backend,
    Batch,
    DenseCache,
    PagedCache,
    QuantizedCache,
    RecurrentCache,
    RecurrentPool,
)
from tinyllm_layers import RotatingCache as Rotating
from tinyllm_ops import MLX, REFERENCE, OpSet
from tinyllm_qwen import Qwen, Tokenizer, generate, load
from tinyllm_qwen.caches import common_prefix
from tinyllm_qwen.testing import hybrid_checkpoint

PROMPT = mx.random.randint(0, 2041, (200,), key=mx.random.key(2))
TOKENS = [int(token) for token in PROMPT]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Qwen, Tokenizer]:
    """A small hybrid model: layers 3 and 7 of 8 have attention."""
    return load(hybrid_checkpoint(tmp_path_factory.mktemp("models") / "tiny"), ops=MLX)


def answer(loaded: tuple[Qwen, Tokenizer], prompt: list[int], **options: object) -> list[int]:
    """Return 8 greedy tokens."""
    pieces = generate(*loaded, prompt, max_tokens=8, **options)  # type: ignore[arg-type]
    return [piece.token for piece in pieces]


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, DenseCache), ({"kv_bits": 8}, QuantizedCache), ({"max_size": 64}, Rotating)],
)
def test_options_of_caches_apply_to_attention_layers(
    loaded: tuple[Qwen, Tokenizer], options: dict[str, int], kind: type
) -> None:
    model, _ = loaded
    caches = model.make_caches(**options)
    kinds = [kind if layer in (3, 7) else RecurrentCache for layer in range(8)]
    assert [type(cache) for cache in caches] == kinds
    assert len(answer(loaded, TOKENS, caches=caches)) == 8


def test_pages_and_states_are_counted_separately(loaded: tuple[Qwen, Tokenizer]) -> None:
    model, _ = loaded
    caches = model.make_pages(3, 16, state_slots=5)
    kinds = [PagedCache if layer in (3, 7) else RecurrentPool for layer in range(8)]
    assert [type(cache) for cache in caches] == kinds
    pages = sum(cache.nbytes for cache in caches if isinstance(cache, PagedCache))
    states = sum(cache.nbytes for cache in caches if isinstance(cache, RecurrentPool))
    assert (pages, states) == (3 * model.page_bytes(16), 5 * model.state_bytes())
    model.copy_pages(caches, [(0, 1)])  # pools of states have no pages


def test_a_backend_makes_all_pages_and_states(tmp_path: Path) -> None:
    made: list[mx.array] = []

    def zeros(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        made.append(mx.zeros(shape, dtype))
        return made[-1]

    plain = {field.name: getattr(MLX, field.name) for field in fields(OpSet)}
    model, _ = load(hybrid_checkpoint(tmp_path / "tiny"), ops=Backend(**plain, zeros=zeros))
    caches = model.make_pages(3, 16, state_slots=2)
    arrays = [array for cache in caches for array in cache.arrays]
    assert len(made) == 2 * 8
    assert all(a is b for a, b in zip(arrays, made, strict=True))


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_the_chunks_of_a_prompt_do_not_matter(loaded: tuple[Qwen, Tokenizer], chunk: int) -> None:
    prompt = TOKENS[:70]
    assert answer(loaded, prompt, prefill_chunk=chunk) == answer(loaded, prompt)


def test_a_closed_call_can_be_continued(loaded: tuple[Qwen, Tokenizer]) -> None:
    model, tokenizer = loaded
    expected, caches = answer(loaded, TOKENS), model.make_caches()
    pieces = generate(model, tokenizer, TOKENS, caches=caches)
    first = [next(pieces).token for _ in range(3)]
    pieces.close()
    # all yielded tokens but the last
    assert [layer_cache.offset for layer_cache in caches] == [202] * 8
    assert first + answer(loaded, TOKENS + first, caches=caches)[:5] == expected


def test_the_next_turn_continues_from_a_kept_state(loaded: tuple[Qwen, Tokenizer]) -> None:
    model, _ = loaded
    caches = model.make_caches()
    answer(loaded, TOKENS, caches=caches)
    following = [*TOKENS[:190], *TOKENS[:30]]  # the end of the first prompt is not repeated
    kept = common_prefix(caches, 190)
    assert kept == 128  # the last multiple of 64 before the end of the prompt
    for layer_cache in caches:
        layer_cache.trim(kept)
    assert answer(loaded, following, caches=caches) == answer(loaded, following)


def test_an_interrupted_prompt_leaves_equal_lengths(loaded: tuple[Qwen, Tokenizer]) -> None:
    model, _ = loaded
    caches = model.make_caches()

    def stop(done: int, total: int) -> None:
        if done == 128:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(loaded, TOKENS, caches=caches, prefill_chunk=64, on_prefill=stop)
    assert len({layer_cache.offset for layer_cache in caches}) == 1
    assert answer(loaded, TOKENS, caches=caches) == answer(loaded, TOKENS)


def test_states_after_different_lengths_have_a_common_prefix(
    loaded: tuple[Qwen, Tokenizer],
) -> None:
    model, _ = loaded
    caches = model.make_caches()
    model(PROMPT[None], caches)
    caches[0].trim(128)  # as after an interrupt within a pass
    assert common_prefix(caches, 200) == 128
    assert common_prefix(caches, 100) == 0


def test_a_refused_pass_changes_no_layer(loaded: tuple[Qwen, Tokenizer]) -> None:
    model, _ = loaded
    caches = model.make_caches()
    model(PROMPT[None, :3], caches)
    with pytest.raises(ValueError, match="tokens from position 3 on"):
        model(PROMPT[None, 3:4], caches, batch=Batch.at(7, 1, 1))
    assert {cache.offset for cache in caches} == {3}
    model(PROMPT[None, 3:4], caches)


@pytest.mark.parametrize("ops", [MLX, REFERENCE], ids=["mlx", "reference"])
def test_a_model_and_its_caches_serve_other_threads(tmp_path: Path, ops: OpSet) -> None:
    loaded = load(hybrid_checkpoint(tmp_path / "tiny"), ops=ops)
    expected = answer(loaded, TOKENS)
    caches = loaded[0].make_caches()
    longer = [*TOKENS, *answer(loaded, TOKENS, caches=caches), 7]
    with ThreadPoolExecutor(1) as other:
        continued = other.submit(answer, loaded, longer, caches=caches).result()
    assert continued == answer(loaded, longer)
    # the first answer of a model in another thread than that of `load`
    fresh = load(hybrid_checkpoint(tmp_path / "fresh"), ops=ops)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(answer, fresh, TOKENS).result() == expected
