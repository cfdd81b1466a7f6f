"""The errors that end or refuse a request."""

from typing import TypeVar

E = TypeVar("E", bound=Exception)


class RequestError(ValueError):
    """The engine can never serve the request. The message says what to change."""


class PromptTooLongError(RequestError):
    """The prompt leaves no space for an answer in the context of the model, or in the pages."""


class EngineFullError(RuntimeError):
    """The queue of the engine, a tenant's queue of grammars, or the memory for grammars is full.

    Attributes:
        retry_after: seconds after which the client should send the request again.
    """

    retry_after = 1.0

    def __init__(
        self,
        count: int,
        contents: str = "requests",
        state: str = "waiting",
        remedy: str | None = None,
    ) -> None:
        """Make the message from the number, the kind and the state of what fills the engine.

        Args:
            count: the number of requests or grammars.
            contents: "requests" or "grammars".
            state: "waiting" or "in use".
            remedy: the end of the message; None for clients of `AsyncEngine`, who can wait.
        """
        self._filled = (count, contents, state)
        remedy = remedy or f"try again in {self.retry_after:.0f} s"
        super().__init__(f"{count} {contents} are {state}: {remedy}")

    def with_remedy(self, remedy: str | None = None) -> "EngineFullError":
        """Return the error with another remedy, which has the meaning of that of `__init__`."""
        return EngineFullError(*self._filled, remedy)


def for_client(error: E) -> E | EngineFullError:
    """Return an error of `Engine` for a client of `AsyncEngine`, whose remedy is to wait.

    The caller of an `Engine` empties its queue with `step`. An `AsyncEngine` computes the steps
    itself, in its thread.
    """
    return error.with_remedy() if isinstance(error, EngineFullError) else error


class EngineClosedError(RuntimeError):
    """The engine is closed or has failed, and accepts no requests. The message has the reason."""


class RequestFailedError(RuntimeError):
    """The request ended because the steps that computed it failed."""


class GrammarLimitError(RuntimeError):
    """The grammar of a request was given up, because its masks take too much time or memory.

    The text of the request so far is incomplete. The message says what to change.
    """


class UnreadOutputError(RuntimeError):
    """The request was cancelled, because its caller did not read its outputs."""

    def __init__(self, unread: int) -> None:
        """Make the message from the number of unread outputs."""
        super().__init__(f"the answer was cancelled with {unread:,} unread tokens: read it faster")
