"""The choice of a drafter by the settings of an engine."""

from collections.abc import Callable

from tinyllm_qwen import Tokenizer
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.head_runner import HeadRunner
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.request import RequestState
from tinyllm_engine.runner import Runner
from tinyllm_engine.speculative.draft_model import DraftModel
from tinyllm_engine.speculative.drafter import Drafter
from tinyllm_engine.speculative.head_drafter import HeadDrafter
from tinyllm_engine.speculative.prompt_lookup import PromptLookup


def make_drafter(
    settings: EngineSettings,
    head: HeadRunner | None,
    tokenizer: Tokenizer,
    pool: PagePool,
    reserve: Callable[[RequestState, int], bool],
    draft_model: LanguageModel | None,
) -> Drafter | None:
    """Return the drafter of an engine; None if speculation is off.

    Args:
        settings: the settings of the engine.
        head: the runner of the draft head of the model; None for a model without one.
        tokenizer: the tokenizer of the model.
        pool: the pages, which hold the keys and values of the draft model too.
        reserve: allocates pages for the first tokens of a request: see `Scheduler.reserve`.
        draft_model: the draft model; None for draft tokens from the draft head of the model, or
            from the text itself if the model has no draft head.

    Raises:
        ValueError: if the draft model or the draft head does not fit the settings, or the draft
            model does not fit the tokenizer.
    """
    num_speculative_tokens, vocab_size = settings.num_speculative_tokens, tokenizer.vocab_size
    if head is not None:
        if draft_model is not None or not num_speculative_tokens:
            got = "a draft model" if draft_model is not None else "num_speculative_tokens = 0"
            raise ValueError(
                "draft_head: expected num_speculative_tokens of at least 1 without a draft model, "
                f"got {got}: change it, or load the model without draft_head"
            )
        return HeadDrafter(head, reserve, vocab_size=vocab_size)
    if draft_model is None:
        return PromptLookup() if num_speculative_tokens else None
    if not num_speculative_tokens:
        raise ValueError(
            "num_speculative_tokens: expected at least 1 with a draft model, got 0: set it, or "
            "drop the draft model"
        )
    if draft_model.config.vocab_size < vocab_size:
        raise ValueError(
            f"draft_model: expected a model of the same tokenizer, with at least {vocab_size} "
            f"tokens, got one of {draft_model.config.vocab_size}: choose another draft model"
        )
    return DraftModel(
        Runner(draft_model, pool.draft_caches, pool.num_pages, settings.page_size),
        reserve,
        draft_vocab_size=draft_model.config.vocab_size,
        vocab_size=vocab_size,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
