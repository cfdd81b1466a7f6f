"""An assistant whose model a server has loaded."""

import time
from collections.abc import Callable
from dataclasses import replace

from tinyllm_qwen import Stats
from tinyllm_qwen.checkpoint.hub import BUILT_IN
from tinyllm_qwen.text.reasoning import Segment

from tinyllm_chat.answer import (
    Answer,
    AnswerCollector,
    Progress,
    ShowSegment,
)
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.remote.connection import Json, ServerConnection
from tinyllm_chat.settings import Settings
from tinyllm_chat.thinking import template_variables


class RemoteAssistant:
    """A model of a server, and the settings of one conversation with it.

    Attributes:
        settings: the options of the session; `settings.model` is the server's name of the model.
        thinking: the state of thinking, one of `STATES`; None for the chat template's default.
        answers: the number of answers so far, which the seed of the next answer depends on.
        load_seconds: the time to get the server's list of models.
        max_model_len: the most tokens of a prompt and its answer; 0 if the server does not report
            it.
        peak_memory: None, because the memory of the server is unknown.
    """

    peak_memory = None

    def __init__(self, settings: Settings, connection: ServerConnection) -> None:
        """Choose a model of the server by its name, `settings.model`.

        Raises:
            ChatError: if the server cannot be reached, or does not have the model.
        """
        started = time.perf_counter()
        models = {str(model["id"]): model for model in connection.models()}
        name = settings.model
        # pico is the default of --model. If the server does not have pico, use its first model.
        if name not in models and name == BUILT_IN and models:
            name = next(iter(models))
        if name not in models:
            raise ChatError(
                f"--model: expected a model of the server ({', '.join(models) or 'none'}), "
                f"got {name!r}"
            )
        self.settings = replace(settings, model=name)
        self.thinking = settings.thinking
        self.load_seconds = time.perf_counter() - started
        self.max_model_len = _count(models[name].get("max_model_len"), 0)
        self._connection = connection
        self.answers = 0

    @property
    def description(self) -> str:
        """The URL of the server."""
        return self._connection.url

    @property
    def metadata(self) -> dict[str, object]:
        """The description as fields of a JSON record."""
        return {"server": self._connection.url}

    @property
    def is_greedy(self) -> bool:
        """True if the same question always gets the same answer."""
        return self.settings.temperature == 0

    def think(self, state: str) -> None:
        """Set the state of thinking. The chat template of the server may know no efforts."""
        self.thinking = state

    def stats_lines(self) -> list[str]:
        """Return the lines of /stats about the model."""
        lines = [f"model    {self.settings.model} on {self.description}"]
        if self.max_model_len:
            lines.append(f"context  {self.max_model_len:,} tokens")
        return lines

    def notices(self) -> list[str]:
        """Return no notices: the server checks its own settings."""
        return []

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
            on_prefill: never called, because the server does not report its progress.
            should_stop: called after a KeyboardInterrupt; True ends the answer with its text so
                far.

        Raises:
            ChatError: if the server refuses the request (the error has the server's message) or
                sends no answer, or the connection is lost.
        """
        del on_prefill
        seed = self.settings.seed_of(self.answers)
        self.answers += 1
        answer = StreamedAnswer(show)
        try:
            with self._connection.stream(self._body(conversation, seed)) as chunks:
                for chunk in chunks:
                    if chunk is not None:
                        answer.add(chunk)
        except KeyboardInterrupt:
            if not should_stop():
                raise
            return answer.result("interrupted", seed)
        if answer.is_empty and answer.finish_reason is None:
            raise ChatError(f"{self.description}: the server sent no answer")
        return answer.result(answer.finish_reason or "stop", seed)

    def _body(self, conversation: Conversation, seed: int) -> Json:
        """Return the body of the request, without options that the user did not give."""
        settings = self.settings
        given: Json = {
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
            "min_p": settings.min_p,
            "repetition_penalty": settings.repetition_penalty,
            "stop": settings.stop,
            "chat_template_kwargs": template_variables(self.thinking) or None,
        }
        return {
            "model": settings.model,
            "messages": conversation.messages(),
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name, value in given.items() if value is not None},
        }


class StreamedAnswer:
    """An answer in progress, assembled from the chunks of a stream.

    The times of the answer are measured in this process.

    Attributes:
        finish_reason: the finish reason of the server; None before the end, or without one.
    """

    def __init__(self, show: ShowSegment) -> None:
        """Start an answer and its clock.

        Args:
            show: called with each segment of text.
        """
        self.finish_reason: str | None = None
        self._collector = AnswerCollector(show)
        self._started = self._first = self._latest = time.perf_counter()
        self._segments = 0
        self._usage: Json = {}

    def add(self, chunk: Json) -> None:
        """Add the text, the finish reason and the usage of a chunk."""
        choices = chunk.get("choices")
        self._usage = _object(chunk.get("usage")) or self._usage
        choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str) and finish_reason:
            self.finish_reason = finish_reason
        delta = _object(choice.get("delta"))
        # Newer vLLM and mlx_lm.server write `reasoning`. Some servers write both, with one text.
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        for text, thinking in ((reasoning, True), (delta.get("content"), False)):
            if isinstance(text, str) and text:
                self._latest = time.perf_counter()
                if not self._segments:
                    self._first = self._latest
                self._segments += 1
                self._collector.add(Segment(text, thinking))

    @property
    def is_empty(self) -> bool:
        """True if the server has sent neither text nor usage."""
        return not self._segments and not self._usage

    def result(self, finish_reason: str, seed: int) -> Answer:
        """Return the answer so far, with its counts and times."""
        return Answer(
            text=self._collector.text,
            reasoning=self._collector.reasoning,
            finish_reason=finish_reason,
            stats=None if self.is_empty and finish_reason == "interrupted" else self._stats(),
            seed=seed,
        )

    def _stats(self) -> Stats:
        details = _object(self._usage.get("prompt_tokens_details"))
        return Stats(
            prompt_tokens=_count(self._usage.get("prompt_tokens"), 0),
            cached_tokens=_count(details.get("cached_tokens"), 0),
            # A cancelled stream has no usage. Then segments are counted: most have one token.
            generated_tokens=_count(self._usage.get("completion_tokens"), self._segments),
            prefill_seconds=self._first - self._started,
            # 0 with fewer than three segments, whose times say little about the rate.
            decode_seconds=self._latest - self._first if self._segments > 2 else 0.0,
        )


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _count(value: object, default: int) -> int:
    """Return a number of tokens; `default` if the server sends anything else."""
    return value if type(value) is int and 0 <= value < 2**53 else default
