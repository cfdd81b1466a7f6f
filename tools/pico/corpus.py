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
        ask: those that are trained on.
        held: those that are not.
        answer: what pico should say.
    """

    ask: tuple[str, ...]
    held: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Entry(Answer):
    """A question of substance and its follow-ups.

    Attributes:
        id: its name, unique in the corpus.
        file: the name of its file, without the suffix.
        follow: what may be asked right after it.
    """

    id: str
    file: str
    follow: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Question:
    """A phrasing held out of training.

    Attributes:
        file: that of its entry.
        id: that of its entry, with a plus sign if it is a follow-up.
        before: the turns before it, as (user text, answer); none unless it is a follow-up.
        ask: the phrasing.
        answer: what pico should say, word for word.
    """

    file: str
    id: str
    before: tuple[tuple[str, str], ...]
    ask: str
    answer: str


def normal(text: str) -> str:
    """The form in which two phrasings count as one: words and digits in lower case.

    `/command` and `--flag` keep their marks, since /stop and stop are asked about apart.
    """
    return " ".join(re.findall(r"(?:(?<!\S)(?:--|/))?[^\W_]+", text.lower()))


def read(folder: Path) -> list[Entry]:
    """All entries of the TOML files in `folder`, in the order of the files' names.

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
            tables = tomllib.loads(path.read_text("utf-8")).get("entry", [])
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            faults.append(f"{path.name}: {error}")
            continue
        for number, table in enumerate(tables, 1):
            try:
                entries.append(_entry(table, path.stem))
            except (KeyError, TypeError) as error:
                where = f"{path.name}: entry {number} ({table.get('id', 'no id')})"
                faults.append(f"{where}: missing or malformed {error}")
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
    """Every answer, and every phrasing that is trained on."""
    for entry in entries:
        for part in (entry, *entry.follow):
            yield from part.ask
            yield part.answer


def fingerprint(entries: list[Entry]) -> str:
    """A short hash of the corpus, so that a run is resumed on the corpus it was started on."""
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:16]


def _answer(table: dict[str, Any]) -> Answer:
    return Answer(tuple(table["ask"]), tuple(table.get("held", [])), table["answer"].strip())


def _entry(table: dict[str, Any], file: str) -> Entry:
    own = _answer(table)
    follow = tuple(_answer(part) for part in table.get("follow", []))
    return Entry(own.ask, own.held, own.answer, table["id"], file, follow)


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
                    f"({part.ask[0]!r} ...)"
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
