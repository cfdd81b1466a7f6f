"""Generation of text from a prompt, for one sequence."""

import operator
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import SupportsIndex

import mlx.core as mx
from jaxtyping import Integer
from tinyllm_layers import Batch, SequenceCache, StateCache
from tinyllm_layers.cache.dense import CAPACITY_STEP
from tinyllm_ops import Phase

from tinyllm_qwen.caches import cache_arrays, common_offset, trim_to_common_prefix
from tinyllm_qwen.config.fields import show
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import TextTooLongError
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.sampler import Sample, Sampler
from tinyllm_qwen.speculation import Speculation
from tinyllm_qwen.text.output import OutputProcessor, Piece, Stats
from tinyllm_qwen.text.tokenizer import Tokenizer

PREFILL_CHUNK = 512
"""Number of prompt tokens in a pass, by default."""


def generate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    *,
    max_tokens: int = 512,
    sampling: SamplingParams = SamplingParams(),
    stop: Sequence[str] = (),
    caches: Sequence[SequenceCache] | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    on_prefill: Callable[[int, int], None] | None = None,
    num_speculative_tokens: int = 0,
) -> Generator[Piece, None, None]:
    """Continue a prompt, one token at a time.

    The graph of the next token is built while the device computes the current token. The device
    computes the next token while the caller reads the current one. A caller may close the iterator
    early. The caches then have the same state as if the last yielded token had ended the text. A
    piece keeps the logits of its step (V numbers) in memory: drop pieces that are not needed.

    Args:
        model: the model.
        tokenizer: the tokenizer of the model. Its end tokens end the text.
        prompt: token ids, or text. No chat template is applied to text: see
            `Tokenizer.apply_chat_template`.
        max_tokens: the most tokens to generate. The context of the model may end earlier.
        sampling: the sampling parameters; greedy unless given.
        stop: strings that end the text. The text does not contain them.
        caches: caches of an earlier call, one per layer and one for the draft head if the model has
            one, which hold the first tokens of the prompt. After this call they hold the prompt and
            all yielded tokens but the last. A rotating cache that has overwritten tokens cannot be
            trimmed, and may hold the last token too. If an interrupt ends the call, caches of
            recurrent layers may hold fewer tokens.
        prefill_chunk: the number of prompt tokens in a pass.
        on_prefill: a callback after each pass, with the number of prompt tokens computed so far,
            and of all prompt tokens to compute. Tokens in the caches do not count.
        num_speculative_tokens: the most draft tokens of a step, from the draft head of the model;
            see `Speculation`. The tokens are the same for any number. With 0, the cache of a draft
            head is not used.

    Yields:
        One piece per token. The last piece has the finish reason.

    Raises:
        ValueError: if the prompt is empty, is not of token ids, or fills the context of the model,
            if the caches hold the whole prompt, if a number is out of range, or if the model has no
            draft head for `num_speculative_tokens`. The call raises the error, not the iterator.
    """
    tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
    check_model_prompt(tokens, model.config)
    caches = model.make_caches() if caches is None else caches
    if len(caches) != model.num_caches:
        raise ValueError(
            f"caches: expected {model.num_caches}, one per layer and one for the draft head if the "
            f"model has one, got {len(caches)}"
        )
    for name, number, least in (
        ("max_tokens", max_tokens, 1),
        ("prefill_chunk", prefill_chunk, 1),
        ("num_speculative_tokens", num_speculative_tokens, 0),
    ):
        if number < least:
            raise ValueError(f"{name}: expected at least {least}, got {number}")
    sampler = Sampler(sampling, model.config.vocab_size, model.ops, tokens)
    decoding = (
        Speculation(model, caches, sampler, num_speculative_tokens, tokenizer.vocab_size)
        if num_speculative_tokens
        else PlainDecoding(model, caches, sampler)
    )
    used_caches = caches if num_speculative_tokens else model.layer_caches(caches)
    cached = common_offset(used_caches)
    if cached >= len(tokens):
        raise ValueError(
            f"caches: expected fewer tokens than the prompt's {len(tokens)}, got {cached}"
        )
    text = OutputProcessor(tokenizer, stop)
    limit = min(max_tokens, model.config.context_length - len(tokens))
    # An answer often ends long before its limit. Caches grow when it is longer than one step.
    for layer_cache in caches:
        layer_cache.set_expected_length(len(tokens) + min(limit, CAPACITY_STEP))

    def pieces() -> Generator[Piece, None, None]:
        started = first_at = time.perf_counter()
        generated = 0
        try:
            first = _prefill(decoding, tokens[cached:], caches, prefill_chunk, on_prefill)
            for samples, next_step in decoding.steps(first, limit):
                chosen = [int(sample.token) for sample in samples]  # waits for the device
                now = time.perf_counter()
                first_at = first_at if generated else now
                for token, sample in zip(chosen, samples, strict=True):
                    generated += 1
                    shown, reason = text.push(token, ended=generated == limit)
                    if reason is None:
                        # Schedule the next step only now: a running step refers to the arrays of
                        # the caches, and MLX would copy them for the next step instead of writing
                        # in place.
                        mx.async_eval(next_step)
                    stats = Stats(
                        prompt_tokens=len(tokens),
                        cached_tokens=cached,
                        generated_tokens=generated,
                        prefill_seconds=first_at - started,
                        decode_seconds=now - first_at,
                        draft_tokens=decoding.drafted,
                        accepted_tokens=decoding.accepted,
                    )
                    yield Piece(shown, token, reason, stats, sample)
                    if reason is not None:
                        return
        finally:
            trim_to_common_prefix(used_caches, len(tokens) + max(generated - 1, 0))
            # The last token does not need its own states. Later calls may come from other threads,
            # which cannot evaluate lazy arrays of this one.
            mx.eval(cache_arrays([each for each in used_caches if isinstance(each, StateCache)]))

    return pieces()


def token_ids(prompt: Iterable[SupportsIndex]) -> list[int]:
    """Return the ids of a prompt as Python integers, such as those of a NumPy array.

    Raises:
        ValueError: if the prompt is not a sequence of integers.
    """
    try:
        if not isinstance(prompt, bytes):
            return [operator.index(token) for token in prompt]
    except TypeError:
        pass
    raise ValueError(
        f"prompt: expected a text or token ids, got {show(prompt)}: messages become ids with "
        "`tokenizer.apply_chat_template`"
    )


def check_model_prompt(tokens: Sequence[int], config: QwenConfig) -> None:
    """Check that a model can compute a prompt and at least one more token.

    Raises:
        TextTooLongError: if the prompt fills the context of the model.
        ValueError: if the prompt is empty, or has an id outside of the vocabulary.
    """
    if not tokens:
        raise ValueError("prompt: expected at least one token, got none")
    if not 0 <= min(tokens) <= max(tokens) < config.vocab_size:
        raise ValueError(
            f"prompt: expected token ids from 0 to {config.vocab_size - 1}, "
            f"got {min(tokens)} to {max(tokens)}: use the tokenizer of the model"
        )
    if len(tokens) >= config.context_length:
        raise TextTooLongError(
            f"prompt: expected fewer tokens than the model's context of {config.context_length}, "
            f"got {len(tokens)}: shorten it"
        )


class PlainDecoding:
    """Decoding of one sequence without draft tokens: each step chooses one token."""

    drafted = accepted = 0  # counts of draft tokens: see `Speculation`

    def __init__(
        self, model: LanguageModel, caches: Sequence[SequenceCache], sampler: Sampler
    ) -> None:
        """Begin with a model, its caches, and the sampler of the text."""
        self._model = model
        self._caches = caches
        self._sampler = sampler

    def prefill(self, tokens: Sequence[int], after: int) -> None:
        """Compute a chunk of the prompt. Only `Speculation` uses `after`, the token after it."""
        batch = Batch.at(self._caches[0].offset, 1, len(tokens), "prefill")
        self._model.hidden(mx.array([tokens], dtype=mx.int32), batch, self._caches)

    def first(self, tokens: Sequence[int]) -> Sample:
        """Compute the last chunk of the prompt, and choose the first token of the answer."""
        return self._next(mx.array([tokens], dtype=mx.int32), "prefill")

    def steps(self, sample: Sample, limit: int) -> Iterator[tuple[list[Sample], list[mx.array]]]:
        """Yield the samples of each step, with the arrays that start the next step.

        The graph of the next step is built first. The caller waits for the samples, and then
        schedules the arrays.

        Args:
            sample: the first sample of the answer.
            limit: the most samples to yield.
        """
        for _ in range(limit - 1):
            following = self._next(sample.token.reshape(1, 1), "decode")
            yield [sample], [following.token]
            sample = following
        yield [sample], []

    def _next(self, tokens: Integer[mx.array, "1 L"], phase: Phase) -> Sample:
        """Build the graph that computes `tokens` and chooses the next token."""
        model, sampler, caches = self._model, self._sampler, self._caches
        batch = Batch.at(caches[0].offset, 1, tokens.shape[1], phase)
        if model.num_ranks > 1 and sampler.num_best is not None:
            return sampler(model.best_tokens(tokens, batch, caches, sampler.num_best)[0])
        logits = model(tokens, caches, batch=batch, last=1)
        return sampler(logits.reshape(-1))  # an index would copy them


def _prefill(
    decoding: PlainDecoding | Speculation,
    tokens: Sequence[int],
    caches: Sequence[SequenceCache],
    chunk: int,
    on_prefill: Callable[[int, int], None] | None,
) -> Sample:
    """Compute the `tokens` of a prompt in chunks, and choose the next token.

    The head is computed for the last token alone.
    """
    last_start = (len(tokens) - 1) // chunk * chunk
    for stop in range(chunk, last_start + 1, chunk):
        decoding.prefill(tokens[stop - chunk : stop], after=tokens[stop])
        mx.eval(cache_arrays(caches))
        if on_prefill is not None:
            on_prefill(stop, len(tokens))
    sample = decoding.first(tokens[last_start:])
    # The choice of the token does not need all states of recurrent layers.
    mx.eval(sample.token, cache_arrays(caches))
    if on_prefill is not None:
        on_prefill(len(tokens), len(tokens))
    return sample
