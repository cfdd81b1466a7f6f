"""What a whole model can be asked to do, whoever runs it."""

from typing import Protocol, runtime_checkable

from tinyllm_bench.cost import Cost


@runtime_checkable
class Runner(Protocol):
    """One program that holds the model, with a prompt and a cache of its own."""

    @property
    def name(self) -> str:
        """What to call it in a report."""
        ...

    def prefill(self) -> None:
        """Read the prompt into an empty cache and choose the first token; wait for it."""
        ...

    def rewind(self) -> None:
        """Have exactly the context in the cache, for `decode`."""
        ...

    def decode(self, tokens: int) -> None:
        """Generate so many tokens greedily, one after the other, as a user would get them."""
        ...

    def prefill_cost(self) -> Cost:
        """What `prefill` cannot do without."""
        ...

    def decode_cost(self, tokens: int) -> Cost:
        """What a token of `decode` cannot do without, on average."""
        ...
