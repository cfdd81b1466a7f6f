"""What clients say beside what they ask: of many of them, unasked."""

from typing import Literal

from pydantic import Field

from tinyllm_serve.schemas.strict import Strict


class ClientFields(Strict):
    """Fields of conversations that hold as they stand, or are refused."""

    metadata: dict[str, str] | None = Field(
        default=None, max_length=16, description="Given back by /v1/responses."
    )
    store: Literal[False] | None = Field(
        default=None, description="Nothing is stored; true is refused."
    )
    service_tier: Literal["auto", "default"] | None = Field(
        default=None, description="There is one; priority is a field of its own."
    )
    prompt_cache_key: str | None = Field(
        default=None,
        max_length=1024,
        description="Prompts that begin alike share what was computed, with any key.",
    )
    prompt_cache_retention: Literal["in_memory"] | None = None
    safety_identifier: str | None = Field(
        default=None, max_length=256, description="Written to the server's log, as user is."
    )
    user: str | None = Field(
        default=None, max_length=256, description="Written to the server's log."
    )

    @property
    def asker(self) -> str | None:
        """Who asks, by either name."""
        return self.user or self.safety_identifier
