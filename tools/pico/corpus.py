"""The corpus: hand-written questions and answers, read from `corpus/*.toml`, checked, and split for training and test.

A file holds `[[entry]]` tables with `id`, `ask` (ways of asking) and `answer`, and optional `[[entry.follow]]` tables with
`ask` and `answer`: questions that make sense only after the entry's own turn.
"""

import hashlib
import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIN_ASK = 12
MIN_FOLLOW_ASK = 6
OUTSIDE = "outside"


@dataclass(frozen=True)
class Answer:
    """One answer and the ways of asking for it."""

    ask: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Entry(Answer):
    """A question of substance, from file `file`, and its follow-ups."""

    id: str
    file: str
    follow: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Question:
    """A phrasing held out of training: `ask` after the turns `before` should give `answer`."""

    file: str
    id: str
    before: tuple[tuple[str, str], ...]
    ask: str
    answer: str


def normal(text: str) -> str:
    """The form in which two phrasings count as one: lower case words and digits, `/command` and `--flag` kept as such."""
    return " ".join(re.findall(r"(?:(?<!\S)(?:--|/))?[^\W_]+", text.lower()))


def read(folder: Path) -> list[Entry]:
    """All entries of the TOML files in `folder`, in the order of their names.

    Raises:
        ValueError: naming every fault found: duplicate ids, too few phrasings, one phrasing in two entries.
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
                faults.append(
                    f"{path.name}: entry {number} ({table.get('id', 'no id')}): missing or malformed {error}"
                )
    faults += _faults(entries)
    if faults:
        raise ValueError("the corpus has faults:\n  " + "\n  ".join(faults))
    return entries


def split(entries: list[Entry], seed: int) -> tuple[list[Entry], list[Question]]:
    """The entries without their held-out phrasings, and the held-out phrasings as questions.

    Two phrasings of an entry are held out (a tenth of those of the entry "outside"), one or two of a follow-up: never one
    that differs from a training phrasing in case and punctuation alone. The choice depends on `seed` and the id alone.
    """
    train: list[Entry] = []
    held: list[Question] = []
    for entry in entries:
        rng = random.Random(f"{seed} {entry.id}")
        count = len(entry.ask) // 10 if entry.id == OUTSIDE else 2
        kept, out = _hold_out(entry.ask, count, rng)
        held += [Question(entry.file, entry.id, (), ask, entry.answer) for ask in out]
        follows = []
        for follow in entry.follow:
            kept_follow, out = _hold_out(follow.ask, 2 if len(follow.ask) >= 10 else 1, rng)
            before = ((kept[0], entry.answer),)
            held += [
                Question(entry.file, entry.id + "+", before, ask, follow.answer) for ask in out
            ]
            follows.append(Answer(kept_follow, follow.answer))
        train.append(Entry(kept, entry.answer, entry.id, entry.file, tuple(follows)))
    return train, held


def texts(entries: list[Entry]) -> Iterator[str]:
    """Every phrasing and answer."""
    for entry in entries:
        for part in (entry, *entry.follow):
            yield from part.ask
            yield part.answer


def fingerprint(entries: list[Entry]) -> str:
    """A short hash of the corpus, so that a run is resumed on the corpus it was started on."""
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:16]


def _entry(table: dict, file: str) -> Entry:
    follow = tuple(Answer(tuple(f["ask"]), f["answer"].strip()) for f in table.get("follow", []))
    return Entry(tuple(table["ask"]), table["answer"].strip(), table["id"], file, follow)


def _hold_out(
    asks: tuple[str, ...], count: int, rng: random.Random
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    forms = [normal(ask) for ask in asks]
    single = [ask for ask, form in zip(asks, forms) if forms.count(form) == 1 and form]
    out = set(rng.sample(single, min(count, len(single))))
    return tuple(ask for ask in asks if ask not in out), tuple(ask for ask in asks if ask in out)


def _faults(entries: list[Entry]) -> Iterator[str]:
    ids: dict[str, str] = {}
    asked: dict[str, str] = {}
    answers: dict[str, str] = {}
    for entry in entries:
        where = f"{entry.file}.toml: {entry.id}"
        if entry.id in ids:
            yield f"{where}: the id is also in {ids[entry.id]}.toml"
        ids[entry.id] = entry.file
        for part, least in ((entry, MIN_ASK), *((f, MIN_FOLLOW_ASK) for f in entry.follow)):
            different = len({ask.lower() for ask in part.ask})
            if different < least:
                yield f"{where}: {different} different phrasings, expected at least {least} ({part.ask[0]!r} ...)"
            if not part.answer or not all(ask.strip() for ask in part.ask):
                yield f"{where}: an empty phrasing or answer"
            if answers.setdefault(part.answer, where) != where:
                yield f"{where}: the same answer as {answers[part.answer]}"
        for ask in entry.ask:
            if asked.setdefault(normal(ask), where) != where:
                yield f"{where}: {ask!r} is also asked in {asked[normal(ask)]}"
