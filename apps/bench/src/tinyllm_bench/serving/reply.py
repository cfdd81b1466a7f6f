"""What became of one request."""

from dataclasses import dataclass, field


@dataclass
class Reply:
    """Times of an answer's pieces, and its counts.

    Attributes:
        sent: when it was asked, in seconds on some clock.
        pieces: when each piece of text came, on the same clock.
        prompt_tokens: as the server counts them.
        cached_tokens: of them, those that the server had.
        tokens: of the answer, as the server counts them; as many as pieces, where it does not.
        error: why there is no answer; None if there is one.
    """

    sent: float
    pieces: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    error: str | None = None

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between two pieces."""
        return [b - a for a, b in zip(self.pieces, self.pieces[1:], strict=False)]
