"""The sampling defaults of a checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tinyllm_qwen.config.fields import Fields
from tinyllm_qwen.config.json_object import read_json_object
from tinyllm_qwen.regular_file import exists_or_broken_link
from tinyllm_qwen.sampling.params import SamplingParams

MAX_TOKEN_ID = 2**31 - 1

FILE_NAME = "generation_config.json"
_SAMPLED = frozenset({"temperature", "top_k", "top_p", "min_p"})
"""The fields that have no effect without `do_sample`, unless a request has a temperature."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """The sampling fields of `generation_config.json`. `Tokenizer` reads the end tokens.

    A field that is absent from the file has the default below, which filters no tokens. The limits
    of the length (`max_new_tokens`, `max_length`) are not read: the caller decides the length.

    Attributes:
        do_sample: False for greedy decoding by default, whatever `temperature` is.
        temperature: the divisor of the logits.
        top_k: the number of most likely tokens to choose from; 0 for all tokens.
        top_p: the probability mass of the tokens to choose from, in (0, 1].
        min_p: the least probability of a token to choose, relative to the most likely token.
        repetition_penalty: the penalty for tokens that have occurred. A number above 1 makes these
            tokens less likely.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def from_folder(
        cls, folder: Path, overrides: Mapping[str, object] | None = None
    ) -> "GenerationConfig":
        """Read `generation_config.json` in `folder`. Without the file, return the defaults.

        `overrides` replace fields of the file. `temperature`, `top_k`, `top_p` and `min_p` also set
        `do_sample`, unless `overrides` have it.

        Raises:
            CheckpointError: if the file is broken, or a field has a wrong type or is out of range.
        """
        path = folder / FILE_NAME
        values = read_json_object(path) if exists_or_broken_link(path) else {}
        overrides = overrides or {}
        sampled = {"do_sample": True} if overrides.keys() & _SAMPLED else {}
        return cls.from_values({**values, **sampled, **overrides}, str(path))

    @classmethod
    def from_values(cls, values: Mapping[str, object], source: str) -> "GenerationConfig":
        """Read the fields of a JSON object. `source` is its name in error messages.

        Raises:
            CheckpointError: if a field has a wrong type or is out of range.
        """
        fields = Fields(values, source)
        return cls(
            do_sample=fields.flag("do_sample", default=False),
            temperature=fields.number("temperature", 0.0, 100.0, default=1.0),
            top_k=fields.integer("top_k", 0, MAX_TOKEN_ID, default=0),
            top_p=fields.number("top_p", math.ulp(0.0), 1.0, default=1.0),
            min_p=fields.number("min_p", 0.0, 1.0, default=0.0),
            # Logits are divided by the penalty.
            repetition_penalty=fields.number("repetition_penalty", 1e-10, 100.0, default=1.0),
        )

    def sampling(
        self,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
    ) -> SamplingParams:
        """Return sampling parameters. Arguments that are None get the defaults of the checkpoint.

        Raises:
            ValueError: if a number is out of range.
        """
        return SamplingParams(
            temperature=_first(temperature, self.temperature if self.do_sample else 0.0),
            top_k=_first(top_k, self.top_k),
            top_p=_first(top_p, self.top_p),
            min_p=_first(min_p, self.min_p),
            repetition_penalty=_first(repetition_penalty, self.repetition_penalty),
        )


def _first(requested: Number | None, default: Number) -> Number:
    return default if requested is None else requested
