"""An assistant whose model this process has loaded."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import mlx.core as mx
from tinyllm_kernels import BackendChoice, BackendError
from tinyllm_qwen import GenerationConfig, Piece, SamplingParams, generate, load
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.format_bytes import format_bytes
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.parallel.member import Member
from tinyllm_qwen.text.chat_prompt import ChatPrompt
from tinyllm_qwen.text.reasoning import ReasoningParser

from tinyllm_chat.answer import (
    Answer,
    AnswerCollector,
    AnswerFinishReason,
    Progress,
    ShowSegment,
)
from tinyllm_chat.conversation import Conversation, Message
from tinyllm_chat.errors import ChatError
from tinyllm_chat.local.context import fit_prompt
from tinyllm_chat.local.memory_limit import context_in_memory
from tinyllm_chat.local.prefix_cache import PrefixCache
from tinyllm_chat.settings import Settings
from tinyllm_chat.thinking import EFFORTS, template_variables


class _StoppedError(Exception):
    """The user stopped the answer during prefill."""


class LocalAssistant:
    """A loaded model with its tokenizer, its settings and the cache of one conversation.

    Attributes:
        settings: the options of the session.
        backend: the kernels, dtype and device.
        defaults: the sampling defaults of the checkpoint's `generation_config.json`.
        model: the model.
        cache: keys, values and states of the conversation so far.
        thinking: the state of thinking, one of `STATES`; None for the chat template's default.
        answers: the number of answers so far, which the seed of the next answer depends on.
        load_seconds: the time to load the model.
    """

    def __init__(
        self, settings: Settings, progress: Progress | None = None, member: Member | None = None
    ) -> None:
        """Download a model if necessary, and load it.

        Args:
            settings: the options of the session.
            progress: called with the bytes of weights read so far and in all.
            member: this process as rank 0 of the group that shares the model; None if this process
                has the whole model.

        Raises:
            ChatError: if the implementation of `--ops` is not available on this machine, or a draft
                head is asked for on several ranks.
            CheckpointError: if the model's files cannot be used, or lack the draft head.
            HubError: if the files cannot be downloaded.
            ValueError: if the model's head dimension does not suit `settings.kv_bits`, or the
                checkpoint's sampling defaults are out of range.
        """
        started = time.perf_counter()
        try:
            self.backend = backend = BackendChoice.choose(settings.ops, settings.dtype)
        except BackendError as error:
            raise ChatError(f"--ops {settings.ops}: {error}") from error
        folder = resolve(settings.model, settings.revision)
        self.defaults = GenerationConfig.from_folder(folder)
        model: LanguageModel
        if member is None:
            model, tokenizer = load(
                folder,
                ops=backend.ops,
                dtype=backend.dtype,
                progress=progress,
                draft_head=settings.draft_model is not None,
            )
        elif settings.draft_model is not None:
            raise ChatError(
                f"--draft-model {settings.draft_model}: expected one process, got several ranks: "
                "leave the option out"
            )
        else:
            part, tokenizer = member.load(
                folder,
                ops=backend.ops,
                dtype=backend.dtype,
                progress=progress,
                compare_progress=progress,
            )
            model = member.drive(part)
        self.settings, self.model, self._tokenizer = settings, model, tokenizer
        self.thinking: str | None = None
        if settings.thinking is not None:
            self.think(settings.thinking)
        self.load_seconds = time.perf_counter() - started
        self.cache = PrefixCache(lambda: model.make_caches(kv_bits=settings.kv_bits))
        self.answers = 0
        # Errors of the first answer are raised here, before the user has typed anything.
        model.make_caches(kv_bits=settings.kv_bits)
        sampling_params(settings, self.defaults, 0)

    def think(self, state: str) -> None:
        """Set the state of thinking.

        Raises:
            ChatError: if the state is an effort, and the chat template knows none.
        """
        template = self._tokenizer.chat_template
        if state in EFFORTS and (template is None or not template.mentions("reasoning_effort")):
            raise ChatError(
                f"expected thinking on or off, got {state}: the chat template of this model knows "
                "no efforts"
            )
        self.thinking = state

    @cached_property
    def max_model_len(self) -> int:
        """The most tokens of a prompt and its answer together.

        The free memory limits it. It is measured when the context is first needed, because `/model`
        loads a model while the previous one is still in memory.
        """
        longest = context_in_memory(self.model, self.settings.kv_bits)
        return min(longest, self.settings.max_model_len or longest)

    @property
    def dtype(self) -> str:
        """The short name of the dtype of activations, such as "float32"."""
        return str(self.model.dtype).removeprefix("mlx.core.")

    @property
    def description(self) -> str:
        """The kernels, dtype and device, as one line."""
        return f"{self.backend.ops.name} ops, {self.dtype}, {self.backend.device}"

    @property
    def metadata(self) -> dict[str, object]:
        """The description as fields of a JSON record."""
        backend = self.backend
        return {"ops": backend.ops.name, "dtype": self.dtype, "device": backend.device}

    @property
    def peak_memory(self) -> int:
        """MLX's peak memory so far, in bytes."""
        return mx.get_peak_memory()

    @property
    def is_greedy(self) -> bool:
        """True if the same question always gets the same answer."""
        return sampling_params(self.settings, self.defaults, 0).is_greedy

    def stats_lines(self) -> list[str]:
        """Return the lines of /stats about the model."""
        ranks = self.model.num_ranks
        part = f" on this rank of {ranks}" if ranks > 1 else ""
        return [
            f"model    {self.settings.model}, {format_bytes(self.model.nbytes)} of weights{part}, "
            f"loaded in {self.load_seconds:.2f} s",
            f"maths    {self.description}",
            f"context  {len(self.cache.tokens):,} of {self.max_model_len:,} tokens cached, "
            f"{format_bytes(self.cache.nbytes)} of keys and values",
        ]

    def notices(self) -> list[str]:
        """Return notices about a slower backend and about options without effect."""
        config = self.model.config
        notices = [self.backend.note] if self.backend.note else []
        notices += [*config.notices, *self._tokenizer.notices]
        if self.settings.kv_bits is not None and config.recurrent is not None:
            recurrent, layers = len(config.recurrent.layers), config.num_hidden_layers
            notices.append(
                f"--kv-bits applies to {layers - recurrent} of {layers} layers: the others are "
                "recurrent and keep a state of constant size in float32"
            )
        notices += [
            f"{option} has no effect: decoding is greedy, unless --temperature is above 0"
            for option in unused_options(self.settings, self.defaults)
        ]
        longest = config.context_length
        wanted = self.settings.max_model_len or longest
        if wanted > longest:
            notices.append(
                f"--max-model-len {wanted:,} has no effect: the model's own context has "
                f"{longest:,} tokens"
            )
        if self.max_model_len < min(wanted, longest):
            notices.append(
                f"the context is limited to {self.max_model_len:,} tokens, whose keys and values "
                "fit into the free memory (--kv-bits 8 or 4 makes them smaller)"
            )
        return notices

    def reply(
        self,
        conversation: Conversation,
        show: ShowSegment,
        *,
        on_prefill: Progress = lambda _done, _total: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Answer the last question of a conversation.

        The caller adds the answer to the conversation.

        Args:
            conversation: a conversation that ends with a question.
            show: called with each segment of text.
            on_prefill: called with the prompt tokens computed so far, and their total number.
            should_stop: called between steps; True ends the answer.

        Raises:
            ChatError: if the question does not fit into the context, or the model computes NaN.
            TemplateError: if the checkpoint has no chat template, or the template refuses the
                conversation.
        """
        answer_tokens = self.settings.answer_tokens
        fitted = fit_prompt(conversation, self._prompt, self.max_model_len, answer_tokens)
        prompt = fitted.tokens
        parser = ReasoningParser(opened=fitted.opens_reasoning)
        collector = AnswerCollector(show)
        seed = self.settings.seed_of(self.answers)
        self.answers += 1
        caches = self.cache.acquire(prompt)

        def prefill_progress(done: int, total: int) -> None:
            on_prefill(done, total)
            if should_stop():
                raise _StoppedError

        last: Piece | None = None
        finish_reason: AnswerFinishReason = "interrupted"
        generated: list[int] = []
        pieces = generate(
            self.model,
            self._tokenizer,
            prompt,
            max_tokens=min(answer_tokens, self.max_model_len - len(prompt)),
            sampling=sampling_params(self.settings, self.defaults, seed),
            stop=self.settings.stop or (),
            caches=caches,
            on_prefill=prefill_progress,
            num_speculative_tokens=self.settings.num_draft_tokens,
        )
        try:
            for last in pieces:
                if not generated and math.isnan(last.logprob):
                    raise ChatError(
                        "the model computes NaN: its weights are damaged, or too large for the "
                        "dtype: try --dtype float32"
                    )
                generated.append(last.token)
                collector.add(*parser.push(last.text))
                if last.finish_reason is not None:
                    finish_reason = last.finish_reason
                elif should_stop():
                    break
        except _StoppedError:
            pass  # raised between two chunks of the prompt: the caches hold all earlier chunks
        finally:
            pieces.close()
            collector.add(*parser.finish())
        self.cache.store(caches, [*prompt, *generated])
        return Answer(
            text=collector.text,
            reasoning=collector.reasoning,
            finish_reason=finish_reason,
            stats=None if last is None else last.stats,
            seed=seed,
            dropped_turns=fitted.first_turn - conversation.dropped_turns,
        )

    def _prompt(self, messages: list[Message]) -> ChatPrompt:
        return self._tokenizer.chat_prompt(messages, template_variables(self.thinking))


def sampling_params(settings: Settings, defaults: GenerationConfig, seed: int) -> SamplingParams:
    """Return the sampling parameters of one answer. Options replace the checkpoint's defaults.

    Raises:
        ValueError: if the checkpoint's defaults are out of range.
    """
    params = defaults.sampling(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition_penalty,
    )
    return replace(params, seed=seed)


def unused_options(settings: Settings, defaults: GenerationConfig) -> list[str]:
    """Return the given options that have no effect because decoding is greedy."""
    if not sampling_params(settings, defaults, 0).is_greedy:
        return []
    given = {"--top-k": settings.top_k, "--top-p": settings.top_p, "--min-p": settings.min_p}
    return [option for option, value in given.items() if value is not None]
