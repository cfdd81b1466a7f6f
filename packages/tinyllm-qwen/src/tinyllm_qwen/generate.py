"""Generation of text from a prompt, for one sequence."""

import time
from collections.abc import Callable, Generator, Sequence

import mlx.core as mx
from jaxtyping import Integer
from tinyllm_layers import Batch, SequenceCache
from tinyllm_layers.cache.dense import STEP
from tinyllm_ops import Phase

from tinyllm_qwen.caches import common_offset, forget
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.sample import Sample
from tinyllm_qwen.sampling.sampler import Sampler
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
    cache: Sequence[SequenceCache] | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    on_prefill: Callable[[int, int], None] | None = None,
    speculation: int = 0,
) -> Generator[Piece, None, None]:
    """Continue a prompt, one token at a time.

    The graph of the next token is built while the device computes the current token. The device
    computes the next token while the caller reads the current one. A caller may close the iterator
    early. The cache then has the same state as if the last yielded token had ended the text. Each
    piece refers to the logits of its step, V numbers, as long as the piece exists.

    Args:
        model: the model.
        tokenizer: the tokenizer of the model. Its end tokens end the text.
        prompt: token ids, or text. No chat template is applied to text: see
            `Tokenizer.apply_chat_template`.
        max_tokens: the most tokens to generate. The context of the model may end earlier.
        sampling: the sampling parameters; greedy unless given.
        stop: strings that end the text. The text does not contain them.
        cache: caches of an earlier call, which hold the first tokens of the prompt. After this call
            they hold the prompt and all yielded tokens but the last. A rotating cache that has
            overwritten tokens cannot be trimmed, and may hold the last token too. If an interrupt
            ends the call, caches of recurrent layers may hold fewer tokens.
        prefill_chunk: the number of prompt tokens in a pass.
        on_prefill: a callback after each pass, with the number of prompt tokens computed so far,
            and of all prompt tokens to compute. Tokens in the cache do not count.
        speculation: the most draft tokens of a step, from the draft head of the model; see
            `Speculation`. The tokens are the same for any number. With 0, the cache of a draft head
            is not used.

    Yields:
        One piece per token. The last piece has the finish reason.

    Raises:
        ValueError: if the prompt is empty or fills the context of the model, if the cache holds the
            whole prompt, if a number is out of range, or if the model has no draft head for
            `speculation`. The call raises the error, not the iterator.
    """
    tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    cache = model.make_cache() if cache is None else cache
    if len(cache) != model.num_layers:
        raise ValueError(f"cache: expected {model.num_layers}, one per layer, got {len(cache)}")
    if speculation < 0:
        raise ValueError(f"speculation: expected at least 0, got {speculation}")
    drafts = Speculation(model, cache, speculation, tokenizer.vocab_size) if speculation else None
    layers = cache if drafts is not None else _of_layers(cache, model)
    cached, context = common_offset(layers), model.config.context_length
    _check_tokens(tokens, model.config.vocab_size, cached)
    if len(tokens) >= context:
        raise ValueError(
            f"prompt: expected fewer tokens than the model's context of {context}, "
            f"got {len(tokens)}: shorten it"
        )
    for name, number in (("max_tokens", max_tokens), ("prefill_chunk", prefill_chunk)):
        if number < 1:
            raise ValueError(f"{name}: expected at least 1, got {number}")
    sampler = Sampler(sampling, model.config.vocab_size, model.ops)
    text = OutputProcessor(tokenizer, stop)
    limit = min(max_tokens, context - len(tokens))
    for layer in cache:
        layer.expect(len(tokens) + min(limit, STEP))

    def pieces() -> Generator[Piece, None, None]:
        started = time.perf_counter()
        sampler.start(mx.array(tokens, dtype=mx.int32))
        given = 0
        try:
            sample = _prefill(model, tokens[cached:], cache, sampler, prefill_chunk, on_prefill)
            first_at = started
            while True:
                more = given + 1 < limit
                latest = sample.token.reshape(1, 1)
                following = _next(model, latest, "decode", cache, sampler) if more else None
                token = int(sample.token)  # waits for the device
                now = time.perf_counter()
                first_at = first_at if given else now
                given += 1
                shown, reason = text.push(token, ended=following is None)
                if following is not None and reason is None:
                    # Schedule the next step only now: a running step refers to the arrays of the
                    # caches, and MLX would copy them for the next step instead of writing in place.
                    mx.async_eval(following.token)
                stats = Stats(len(tokens), cached, given, first_at - started, now - first_at)
                yield Piece(shown, token, reason, stats, sample)
                if following is None or reason is not None:
                    return
                sample = following
        finally:
            forget(layers, len(tokens) + max(given - 1, 0))

    if drafts is None:
        return pieces()

    def prefill() -> Sample:
        return _prefill(model, tokens[cached:], cache, sampler, prefill_chunk, on_prefill, drafts)

    return drafts.pieces(tokens, cached, limit, sampler, text, prefill)


def _of_layers(cache: Sequence[SequenceCache], model: LanguageModel) -> Sequence[SequenceCache]:
    """Return the caches of all layers, without the cache of a draft head."""
    return model.layer_caches(cache) if isinstance(model, Qwen) else cache


def _check_tokens(tokens: Sequence[int], vocab_size: int, cached: int) -> None:
    """Refuse a prompt that is empty, in the cache as a whole, or outside of the vocabulary."""
    if not tokens:
        raise ValueError("prompt: expected at least one token, got none")
    if not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ValueError(
            f"prompt: expected token ids below {vocab_size}, got {min(tokens)} to {max(tokens)}"
        )
    if cached >= len(tokens):
        raise ValueError(
            f"cache: expected fewer tokens than the prompt's {len(tokens)}, got {cached}"
        )


def _prefill(
    model: LanguageModel,
    tokens: Sequence[int],
    cache: Sequence[SequenceCache],
    sampler: Sampler,
    chunk: int,
    on_prefill: Callable[[int, int], None] | None,
    drafts: Speculation | None = None,
) -> Sample:
    """Compute the `tokens` of a prompt in chunks, and choose the next token.

    The head is computed for the last token alone.
    """
    last = (len(tokens) - 1) // chunk * chunk  # the start of the last chunk
    for start in range(0, last, chunk):
        piece = mx.array([tokens[start : start + chunk]], dtype=mx.int32)
        batch = Batch.at(cache[0].offset, 1, chunk, "prefill")
        h = model.hidden(piece, batch, cache)
        if drafts is not None:
            drafts.follow(h, tokens[start + 1 : start + chunk + 1], batch)
        del h
        mx.eval([array for layer in cache for array in layer.arrays])
        if on_prefill is not None:
            on_prefill(start + chunk, len(tokens))
    if drafts is None:
        piece = mx.array([tokens[last:]], dtype=mx.int32)
        sample = _next(model, piece, "prefill", cache, sampler)
    else:
        sample = drafts.first(tokens[last:], sampler)
    # The choice of the token does not need all states of recurrent layers.
    mx.eval(sample.token, [array for layer in cache for array in layer.arrays])
    if on_prefill is not None:
        on_prefill(len(tokens), len(tokens))
    return sample


def _next(
    model: LanguageModel,
    tokens: Integer[mx.array, "1 L"],
    phase: Phase,
    cache: Sequence[SequenceCache],
    sampler: Sampler,
) -> Sample:
    """Build the graph that computes `tokens` and chooses the next token."""
    batch = Batch.at(cache[0].offset, 1, tokens.shape[1], phase)
    if model.num_ranks > 1 and sampler.num_candidates is not None:
        best = model.best(tokens, batch, cache, sampler.num_candidates)
        return sampler.from_candidates(best.at(0))
    logits = model(tokens, cache, batch, last=1)
    return sampler(logits.reshape(-1))  # an index would copy them
