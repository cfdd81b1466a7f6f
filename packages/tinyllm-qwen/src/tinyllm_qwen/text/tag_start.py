"""The end of a text that may turn out to be the beginning of a tag."""


def undecided(text: str, tag: str) -> int:
    """How many characters at the end may be the white space before `tag`, or a part of it."""
    part = next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
    before = text[: len(text) - part]
    return part + len(before) - len(before.rstrip())
