"""Questions outside pico's subject: frames filled with everyday words.

No list covers all questions that people may ask. Their words are not the words of the subject, so
pico is trained on many words in many frames, also in the frames of technical questions.
"""

import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

_PLACE = re.compile(r"\{(\w+)\}")
_LISTS = {"noun": "nouns", "place": "places", "person": "persons", "verb": "verbs"}


def read(path: Path) -> Callable[[random.Random], str]:
    """Read the frames and words; return a function that draws a question.

    Raises:
        ValueError: if the file is not TOML or a frame names a list that is not there.
    """
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    words = {name: table[plural] for name, plural in _LISTS.items()}
    frames: list[str] = table["frames"]
    unknown = {name for frame in frames for name in _PLACE.findall(frame)} - set(words)
    if unknown:
        raise ValueError(f"{path}: frames ask for {', '.join(sorted(unknown))}, which is no list")

    def draw(rng: random.Random) -> str:
        return _PLACE.sub(lambda match: rng.choice(words[match[1]]), rng.choice(frames))

    return draw
