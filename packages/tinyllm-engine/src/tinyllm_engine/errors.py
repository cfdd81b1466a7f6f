"""The errors that end or refuse a request."""


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

    def __init__(self, count: int, contents: str = "requests", state: str = "waiting") -> None:
        """Make the message from the number, the kind and the state of what fills the engine."""
        super().__init__(f"{count} {contents} are {state}: try again in {self.retry_after:.0f} s")


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
