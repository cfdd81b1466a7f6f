"""The division of a model between processes, as the option `--split` requests it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """The division of the decoder layers of a model between ranks.

    Attributes:
        by_layers: True if each rank has whole layers (pipeline parallelism), False if it has some
            heads and columns of every layer (tensor parallelism).
        layers: the number of layers of each rank; empty to divide the layers evenly.
    """

    by_layers: bool = False
    layers: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Split":
        """Parse "heads", "layers", or the number of layers of each rank, such as "20,8".

        Raises:
            ValueError: if the text has another form.
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
