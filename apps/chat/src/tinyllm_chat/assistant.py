"""A model that answers conversations."""

import math
import secrets
import time
from collections.abc import Callable

import mlx.core as mx
from tinyllm_kernels import Arithmetic, BackendError
from tinyllm_qwen import (
    GenerationConfig,
    Piece,
    SamplingParams,
    Tokenizer,
    generate,
    load,
)
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.parallel.member import Member
from tinyllm_qwen.text.reasoning import OPEN, ReasoningParser, Segment

from tinyllm_chat.answer import Answer, Ending
from tinyllm_chat.answerer import Progress, Show
from tinyllm_chat.context import Context
from tinyllm_chat.conversation import Conversation, Message
from tinyllm_chat.errors import ChatError
from tinyllm_chat.prefix_cache import PrefixCache
from tinyllm_chat.sampling import idle_options, sampling_params
from tinyllm_chat.settings import Settings
from tinyllm_chat.size import size


class _StoppedError(Exception):
    """The user stopped the answer before its first token."""


class Assistant:
    """A loaded model with its tokenizer, its settings and the cache of one conversation.

    Attributes:
        settings: what was asked for.
        backend: what computes.
        advice: the checkpoint's own sampling.
        model: the model.
        cache: keys and values of the conversation so far.
        context: the window that a conversation has to fit into.
        think: whether the model is to think first; None leaves it to the template.
        load_seconds: what loading took.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        advice: GenerationConfig,
        backend: Arithmetic,
        settings: Settings,
        load_seconds: float = 0.0,
    ) -> None:
        """Put the parts together; `load` is the usual way.

        Raises:
            ValueError: if the model's head dim does not suit `settings.kv_bits`, or the
                checkpoint's advice on sampling is out of range.
        """
        self.settings = settings
        self.backend = backend
        self.advice = advice
        self.model = model
        self.think = settings.think
        self.load_seconds = load_seconds
        longest = model.config.context_length
        self.context = Context(min(longest, settings.max_context or longest), self._encode)
        self.cache = PrefixCache(lambda: model.make_cache(kv_bits=settings.kv_bits))
        self._tokenizer = tokenizer
        self._answers = 0
        # What could fail at the first answer fails here, where nothing has been typed yet.
        model.make_cache(kv_bits=settings.kv_bits)
        sampling_params(settings, advice, 0)

    @classmethod
    def load(
        cls,
        settings: Settings,
        progress: Progress | None = None,
        member: Member | None = None,
    ) -> "Assistant":
        """Find, fetch where needed, and load a model.

        Args:
            settings: what was asked for.
            progress: called with the bytes of weights read so far and in all.
            member: this process, rank 0 of several that share the model.

        Raises:
            ChatError: if the implementation that was asked for is not on this machine.
            CheckpointError: if the model's files cannot be used.
            HubError: if they cannot be fetched.
            ValueError: as the constructor.
        """
        started = time.perf_counter()
        try:
            backend = Arithmetic.choose(settings.ops, settings.dtype)
        except BackendError as error:
            raise ChatError(f"--ops {settings.ops}: {error}") from error
        folder = resolve(settings.model, settings.revision)
        advice = GenerationConfig.from_folder(folder)
        model: LanguageModel
        if member is None:
            model, tokenizer = load(folder, ops=backend.ops, dtype=backend.dtype, progress=progress)
        else:
            part, tokenizer = member.load(
                folder,
                ops=backend.ops,
                dtype=backend.dtype,
                progress=progress,
                compare_progress=progress,
            )
            model = member.drive(part)
        return cls(model, tokenizer, advice, backend, settings, time.perf_counter() - started)

    @property
    def dtype(self) -> str:
        """The dtype of the arithmetic, by its short name."""
        return str(self.model.dtype).removeprefix("mlx.core.")

    @property
    def label(self) -> str:
        """What computes."""
        return f"{self.backend.ops.name} ops, {self.dtype}, {self.backend.device}"

    @property
    def facts(self) -> dict[str, object]:
        """The same for programs."""
        backend = self.backend
        return {"ops": backend.ops.name, "dtype": self.dtype, "device": backend.device}

    @property
    def peak_memory(self) -> int:
        """Bytes that MLX has held at most."""
        return mx.get_peak_memory()

    @property
    def window(self) -> int:
        """Tokens of the context."""
        return self.context.size

    @property
    def is_greedy(self) -> bool:
        """Whether the same question gets the same answer."""
        return self.next_sampling().is_greedy

    def details(self) -> list[str]:
        """The lines of /stats that tell of the model."""
        held = f"{len(self.cache.tokens):,} of {self.window:,} tokens"
        ranks = self.model.num_ranks
        part = f" on this rank of {ranks}" if ranks > 1 else ""
        return [
            f"model    {self.settings.model}, {size(self.model.nbytes)} of weights{part}, "
            f"loaded in {self.load_seconds:.2f} s",
            f"maths    {self.label}",
            f"context  {held} held, {size(self.cache.nbytes)} of keys and values",
        ]

    def notices(self) -> list[str]:
        """What is not as one might think."""
        notices = [self.backend.note] if self.backend.note else []
        notices += [
            f"{option} changes nothing: decoding is greedy, unless --temp is above 0"
            for option in idle_options(self.settings, self.advice)
        ]
        if (self.settings.max_context or 0) > self.window:
            notices.append(
                f"--max-context {self.settings.max_context:,}: the model's own context of "
                f"{self.window:,} tokens is the bound"
            )
        return notices

    def next_sampling(self) -> SamplingParams:
        """The sampling of the next answer, with a seed that no earlier one had."""
        first = self.settings.seed
        # 32 bits: exact in every reader of JSON, where it can be read and given to --seed.
        seed = secrets.randbits(32) if first is None else (first + self._answers) % 2**64
        return sampling_params(self.settings, self.advice, seed)

    def reply(
        self,
        conversation: Conversation,
        show: Show,
        *,
        on_prefill: Progress = lambda _done, _total: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Answer the last question of a conversation, which is left as it is.

        Args:
            conversation: it ends with a question.
            show: called with each piece of text.
            on_prefill: called with the prompt's tokens computed so far and in all.
            stopped: asked between steps whether the user wants no more.

        Raises:
            ChatError: if the question does not fit into the context, or the model computes NaN.
            TemplateError: if the checkpoint has no template, or it refuses the conversation.
        """
        forgotten = conversation.forgotten
        prompt = self.context.fit(conversation, self.settings.max_tokens)
        opened = self._render(conversation.messages()).rstrip().endswith(OPEN)
        sampling = self.next_sampling()
        self._answers += 1
        caches = self.cache.reuse(prompt)

        def watch(done: int, total: int) -> None:
            on_prefill(done, total)
            if stopped():
                raise _StoppedError

        text = _Text(show, opened=opened)
        last: Piece | None = None
        ending: Ending = "interrupted"
        given: list[int] = []
        pieces = generate(
            self.model,
            self._tokenizer,
            prompt,
            max_tokens=min(self.settings.max_tokens, self.context.size - len(prompt)),
            sampling=sampling,
            stop=self.settings.stop,
            cache=caches,
            on_prefill=watch,
        )
        try:
            for last in pieces:
                if not given and math.isnan(last.logprob):
                    raise ChatError(
                        "the model computes no numbers (NaN): its weights are damaged, or too "
                        "large for the dtype; try --dtype float32"
                    )
                given.append(last.token)
                text.push(last.text)
                if last.finish_reason is not None:
                    ending = last.finish_reason
                elif stopped():
                    break
        except _StoppedError:
            pass  # between two chunks of the prompt: the caches hold what came before
        finally:
            pieces.close()
            text.finish()
        self.cache.record(caches, [*prompt, *given])
        return Answer(
            text=text.answer,
            reasoning=text.reasoning,
            finish_reason=ending,
            stats=None if last is None else last.stats,
            seed=sampling.seed or 0,
            forgotten=conversation.forgotten - forgotten,
        )

    def _render(self, messages: list[Message]) -> str:
        return self._tokenizer.render_chat(messages, enable_thinking=self.think)

    def _encode(self, messages: list[Message]) -> list[int]:
        return self._tokenizer.encode(self._render(messages))


class _Text:
    """The text of an answer, shown and kept by kind."""

    def __init__(self, show: Show, *, opened: bool) -> None:
        self.answer = self.reasoning = ""
        self._show = show
        self._thoughts = ReasoningParser(opened=opened)

    def push(self, text: str) -> None:
        self._take(self._thoughts.push(text))

    def finish(self) -> None:
        self._take(self._thoughts.finish())

    def _take(self, segments: list[Segment]) -> None:
        for segment in segments:
            if segment.thinking:
                self.reasoning += segment.text
            else:
                self.answer += segment.text
            self._show(segment)
