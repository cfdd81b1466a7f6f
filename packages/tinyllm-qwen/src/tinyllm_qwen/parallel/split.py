"""The division of a model among processes, as a user asks for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """The part of a model's decoder layers that each rank has.

    Attributes:
        by_layers: True if each rank has whole layers (pipeline parallelism), False if it has heads
            and columns of all layers (tensor parallelism).
        layers: layers of each rank; empty to divide them evenly.
    """

    by_layers: bool = False
    layers: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Split":
        """Parse `heads`, `layers`, or numbers of layers such as `20,8`.

        Raises:
            ValueError: if the text is none of these.
        """
        if text in ("heads", "layers"):
            return cls(by_layers=text == "layers")
        numbers = text.split(",")
        if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
            raise ValueError(
                "--split: expected heads, layers or the number of layers of each rank, such "
                f"as 20,8, got {text!r}"
            )
        return cls(by_layers=True, layers=tuple(map(int, numbers)))

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        kind = "layers" if self.by_layers else "heads"
        return ",".join(map(str, self.layers)) or kind


HEADS = Split()
"""The default division: by heads."""
