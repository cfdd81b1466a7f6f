"""The corpus: hand-written questions and answers, read from TOML, checked, and split for a test.

A file of `corpus/` holds `[[entry]]` tables with `id`, `ask` (ways of asking that are trained on),
`held` (ways that are held out of training, to test it) and `answer`, and optional
`[[entry.follow]]` tables with `ask`, `held` and `answer`: questions that make sense only after the
entry's own turn. Reading it takes nothing but the standard library.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIN_ASK = 12
MIN_FOLLOW_ASK = 6
OUTSIDE = "outside"
"""The id of the one entry that declines what lies outside pico's subject."""


@dataclass(frozen=True)
class Answer:
    """One answer and the ways of asking for it.

    Attributes:
        ask: the phrasings to train on.
        held: the phrasings that are held out of training.
        answer: the text that pico should answer.
    """

    ask: tuple[str, ...]
    held: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Entry(Answer):
    """A question that is understood alone, and its follow-ups.

    Attributes:
        id: its name, unique in the corpus.
        file: the name of its file, without the suffix.
        follow: the questions that may be asked right after it.
    """

    id: str
    file: str
    follow: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Question:
    """A phrasing held out of training.

    Attributes:
        file: the file of its entry.
        id: the id of its entry, with a plus sign if it is a follow-up.
        before: the turns before it, as (user text, answer); none unless it is a follow-up.
        ask: the phrasing.
        answer: the text that pico should answer, word for word.
    """

    file: str
    id: str
    before: tuple[tuple[str, str], ...]
    ask: str
    answer: str


def normal(text: str) -> str:
    """Return the normal form of a phrasing: its words and digits in lower case.

    Phrasings of the same normal form count as one. `/command` and `--flag` keep their marks,
    because /stop and stop are different subjects.
    """
    return " ".join(re.findall(r"(?:(?<!\S)(?:--|/))?[^\W_]+", text.lower()))


def read(folder: Path) -> list[Entry]:
    """Return all entries of the TOML files in `folder`, in the order of the files' names.

    Raises:
        ValueError: naming every fault found, such as an id used twice, too few phrasings, or a
            phrasing in two entries.
    """
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise ValueError(f"no *.toml in {folder}: the corpus is missing")
    faults: list[str] = []
    entries: list[Entry] = []
    for path in files:
        try:
            tables = _tables(tomllib.loads(path.read_text("utf-8")), "entry")
        except ValueError as error:  # also of TOML and of UTF-8
            faults.append(f"{path.name}: {error}")
            continue
        for number, table in enumerate(tables, 1):
            try:
                entries.append(_entry(table, path.stem))
            except ValueError as error:
                where = f"{path.name}: entry {number} ({table.get('id', 'no id')})"
                faults.append(f"{where}: {error}")
    faults += _faults(entries)
    if faults:
        raise ValueError("the corpus has faults:\n  " + "\n  ".join(faults))
    return entries


def questions(entries: list[Entry]) -> list[Question]:
    """Return the held-out phrasings as questions; a follow-up comes after the turn of its entry."""
    found: list[Question] = []
    for entry in entries:
        found += [Question(entry.file, entry.id, (), ask, entry.answer) for ask in entry.held]
        before = ((entry.ask[0], entry.answer),)
        for follow in entry.follow:
            found += [
                Question(entry.file, entry.id + "+", before, ask, follow.answer)
                for ask in follow.held
            ]
    return found


def texts(entries: list[Entry]) -> Iterator[str]:
    """Yield every answer and every phrasing to train on."""
    for entry in entries:
        for part in (entry, *entry.follow):
            yield from part.ask
            yield part.answer


def fingerprint(entries: list[Entry]) -> str:
    """Return a short hash of the corpus. A run is resumed only on the corpus that it began with."""
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:16]


def _answer(table: dict[str, Any]) -> Answer:
    held = _texts(table, "held") if "held" in table else ()
    return Answer(_texts(table, "ask"), held, _text(table, "answer").strip())


def _entry(table: dict[str, Any], file: str) -> Entry:
    own = _answer(table)
    follow = tuple(_answer(part) for part in _tables(table, "follow"))
    return Entry(own.ask, own.held, own.answer, _text(table, "id"), file, follow)


def _tables(table: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{name}: expected tables [[{name}]], got {found!r}")
    return found


def _texts(table: dict[str, Any], name: str) -> tuple[str, ...]:
    found = table.get(name)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{name}: expected a list of texts, got {_shown(found)}")
    return tuple(found)


def _text(table: dict[str, Any], name: str) -> str:
    found = table.get(name)
    if not isinstance(found, str):
        raise ValueError(f"{name}: expected a text, got {_shown(found)}")
    return found


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)


def _faults(entries: list[Entry]) -> Iterator[str]:
    ids: dict[str, str] = {}
    asked: dict[str, str] = {}
    answers: dict[str, str] = {}
    for entry in entries:
        where = f"{entry.file}.toml: {entry.id}"
        if entry.id in ids:
            yield f"{where}: the id is also in {ids[entry.id]}.toml"
        ids[entry.id] = entry.file
        follows = [(follow, MIN_FOLLOW_ASK) for follow in entry.follow]
        for part, least in [(entry, MIN_ASK), *follows]:
            different = len({ask.lower() for ask in (*part.ask, *part.held)})
            if different < least:
                yield (
                    f"{where}: {different} different phrasings, expected at least {least} "
                    f"({' '.join(part.ask[:1])!r} ...)"
                )
            if not part.answer or not all(ask.strip() for ask in (*part.ask, *part.held)):
                yield f"{where}: an empty phrasing or answer"
            if answers.setdefault(part.answer, where) != where:
                yield f"{where}: the same answer as {answers[part.answer]}"
            if shared := {normal(ask) for ask in part.ask} & {normal(ask) for ask in part.held}:
                yield f"{where}: trained on and held out: {', '.join(sorted(shared))}"
        for ask in (*entry.ask, *entry.held):
            if asked.setdefault(normal(ask), where) != where:
                yield f"{where}: {ask!r} is also asked in {asked[normal(ask)]}"
