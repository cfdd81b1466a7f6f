"""Long pastes, shown in brief."""

import re

LONGEST = 10_000
"""Characters of a paste that is shown whole: a megabyte takes a terminal minutes to draw."""

_MARK = re.compile(r"\[paste \d+: [\d,]+ characters\]")


class Pastes:
    """What was pasted, behind the marks that stand for it in the input."""

    def __init__(self) -> None:
        """Start with none."""
        self._texts: dict[str, str] = {}

    def take(self, text: str) -> str:
        """What to put into the input for a paste: itself, or a mark if it is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) <= LONGEST:
            return text
        mark = f"[paste {len(self._texts) + 1}: {len(text):,} characters]"
        self._texts[mark] = text
        return mark

    def expand(self, line: str) -> str:
        """The input with the pastes in it."""
        return _MARK.sub(lambda mark: self._texts.get(mark[0], mark[0]), line)


def has_mark(line: str) -> bool:
    """Whether an input seems to hold a mark, which means nothing to another session."""
    return _MARK.search(line) is not None
