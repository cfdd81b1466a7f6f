"""How several processes divide a model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """What of a model's blocks each rank has.

    Attributes:
        by_layers: each has some blocks, and hands on what leaves the last of them; otherwise each
            has some heads and columns of all blocks.
        layers: how many blocks each has, by rank; none says: as evenly as can be.
    """

    by_layers: bool = False
    layers: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Split":
        """Read what a user has said: heads, layers, or numbers of layers such as 20,8.

        Raises:
            ValueError: if it is none of these.
        """
        if text in ("heads", "layers"):
            return cls(by_layers=text == "layers")
        numbers = text.split(",")
        if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
            raise ValueError(
                "--split: expected heads, layers, or how many layers each rank has, such as 20,8, "
                f"got {text!r}"
            )
        return cls(by_layers=True, layers=tuple(map(int, numbers)))

    def __str__(self) -> str:
        """As `parse` reads it."""
        kind = "layers" if self.by_layers else "heads"
        return ",".join(map(str, self.layers)) or kind


HEADS = Split()
"""What is done unless something else is asked for."""
