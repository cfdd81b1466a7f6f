"""A model on a server that speaks OpenAI's protocol."""

import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from tinyllm_chat.answer import Answer
from tinyllm_chat.answerer import Progress, Show
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.remote_answer import RemoteAnswer
from tinyllm_chat.server_connection import Json, ServerConnection
from tinyllm_chat.settings import PICO, Settings


class RemoteAssistant:
    """A server's model, and the settings of one conversation with it.

    Attributes:
        settings: what was asked for, with the name that the server has for the model.
        think: whether the model is to think first; None leaves it to the template.
        load_seconds: what it took to reach the server.
    """

    def __init__(self, settings: Settings, connection: ServerConnection) -> None:
        """Ask the server for its models.

        Raises:
            ChatError: if it cannot be reached, or does not have the model.
        """
        began = time.perf_counter()
        models = {str(model["id"]): model for model in connection.models()}
        # The built-in model is what nobody has asked for: any other will do as well.
        name = settings.model
        if name not in models and name == PICO and models:
            name = next(iter(models))
        if name not in models:
            raise ChatError(f"--model: the server has {', '.join(models) or 'none'}, not {name!r}")
        self.settings = replace(settings, model=name)
        self.think = settings.think
        self.load_seconds = time.perf_counter() - began
        window = models[name].get("max_model_len")
        self._window = window if isinstance(window, int) else 0
        self._connection = connection
        self._answers = 0

    @property
    def label(self) -> str:
        """Where it is."""
        return self._connection.url

    @property
    def facts(self) -> dict[str, object]:
        """The same for programs."""
        return {"server": self._connection.url}

    @property
    def peak_memory(self) -> None:
        """The server's memory is not this machine's."""
        return None

    @property
    def window(self) -> int:
        """Tokens of the context, 0 if the server does not say."""
        return self._window

    @property
    def is_greedy(self) -> bool:
        """Whether the same question gets the same answer."""
        return self.settings.temperature == 0

    def details(self) -> list[str]:
        """The lines of /stats that tell of the model."""
        return [
            f"model    {self.settings.model} on {self.label}",
            f"context  {self._window:,} tokens",
        ]

    def notices(self) -> list[str]:
        """Nothing is other than was asked for."""
        return []

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
            on_prefill: not called: the server does not tell.
            stopped: asked with each sign of life whether the user wants no more.

        Raises:
            ChatError: in the server's words, or because it is gone.
        """
        del on_prefill  # the server does not tell
        first = self.settings.seed
        seed = secrets.randbits(32) if first is None else (first + self._answers) % 2**64
        self._answers += 1
        answer = RemoteAnswer(show)
        with self._connection.stream(self._body(conversation, seed)) as chunks:
            for chunk in chunks:
                if stopped():
                    return answer.result("interrupted", seed)
                answer.take(chunk)
        return answer.result("length" if answer.ending == "length" else "stop", seed)

    def _body(self, conversation: Conversation, seed: int) -> Json:
        settings = self.settings
        chosen: Json = {
            "temperature": settings.temperature,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
            "min_p": settings.min_p,
            "repetition_penalty": settings.repetition_penalty,
            "stop": list(settings.stop) or None,
            "chat_template_kwargs": None if self.think is None else {"enable_thinking": self.think},
        }
        return {
            "model": settings.model,
            "messages": conversation.messages(),
            "max_tokens": settings.max_tokens,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name, value in chosen.items() if value is not None},
        }
