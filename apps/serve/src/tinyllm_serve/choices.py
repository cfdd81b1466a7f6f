"""The answers to a request, put together while their steps come."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from tinyllm_serve.choice import Choice
from tinyllm_serve.generation import Step
from tinyllm_serve.request_note import Note
from tinyllm_serve.schemas.usage import UsageBody

Steps = AsyncGenerator[tuple[int, Step], None]
"""Steps of several answers as they come, each with its answer's place."""


class Choices:
    """All answers to a request."""

    def __init__(self, steps: Steps, note: Note, count: int, prompts: int = 1) -> None:
        """Begin.

        Args:
            steps: of the answers; `taken` closes them.
            note: gets the counts.
            count: how many answers each prompt has.
            prompts: how many prompts there are.
        """
        self._steps = steps
        self._note = note
        self._per_prompt = count
        self._choices = [Choice() for _ in range(count * prompts)]

    def __getitem__(self, index: int) -> Choice:
        """The answer in a place."""
        return self._choices[index]

    def __iter__(self) -> Iterator[Choice]:
        """All of them in their order."""
        return iter(self._choices)

    async def taken(self) -> Steps:
        """The steps, each once it is part of its answer."""
        try:
            async with aclosing(self._steps) as steps:
                async for index, step in steps:
                    self._choices[index].add(step)
                    yield index, step
        finally:
            self._tell()

    async def complete(self) -> None:
        """Wait until all answers are complete."""
        async with aclosing(self.taken()) as steps:
            async for _ in steps:
                pass

    @property
    def usage(self) -> UsageBody:
        """What the request has cost, its answers being complete."""
        return UsageBody.of(
            [choice.usage for choice in self._choices],
            sum(choice.reasoning_tokens for choice in self._choices),
            choices=self._per_prompt,
        )

    def _tell(self) -> None:
        """Note what the answers have cost, as far as they came, and how they ended."""
        begun = [choice for choice in self._choices if choice.outputs]
        usages = [choice.usage for choice in begun]
        self._note["prompt_tokens"] = sum(usage.prompt_tokens for usage in usages)
        self._note["cached_tokens"] = sum(usage.cached_tokens for usage in usages)
        self._note["completion_tokens"] = sum(usage.completion_tokens for usage in usages)
        self._note["endings"] = [choice.ending or "cancelled" for choice in begun]
