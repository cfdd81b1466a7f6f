"""The training corpus of pico is complete, and its answers are short."""

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PICO = Path(__file__).resolve().parents[1] / "tools/pico"

MIN_ENTRIES = 400  # not counting talk.toml
MIN_ASK = 12
MAX_SENTENCES = 4
MAX_WORDS = 75


def load_corpus_module() -> ModuleType:
    # Load by path, because tools/ is no package. dataclasses needs the module in sys.modules.
    spec = importlib.util.spec_from_file_location("pico_corpus", PICO / "corpus.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


corpus = load_corpus_module()


@pytest.fixture(scope="module")
def entries() -> list[Any]:
    return corpus.read(PICO / "corpus")


def parts(entries: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield entries and follow-ups, each with the id of its entry."""
    for entry in entries:
        for part in (entry, *entry.follow):
            yield entry.id, part


def sentences(text: str) -> int:
    # A mark ends a sentence before a space or the end of the text, also with a quote between.
    # The dots of 0.5 and .ci/run do not count.
    return len(re.findall(r"[.!?]+[`\"')]*(?=\s|$)", text))


def test_parses_without_a_fault(entries: list[Any]) -> None:
    assert {entry.file for entry in entries} == {
        path.stem for path in (PICO / "corpus").glob("*.toml")
    }


def test_covers_its_subject(entries: list[Any]) -> None:
    assert sum(entry.file != "talk" for entry in entries) >= MIN_ENTRIES


def test_ids_are_unique(entries: list[Any]) -> None:
    twice = [name for name, count in Counter(entry.id for entry in entries).items() if count > 1]
    assert twice == []


def test_every_entry_has_enough_phrasings(entries: list[Any]) -> None:
    counts = {entry.id: len({*entry.ask, *entry.held}) for entry in entries}
    assert {name: count for name, count in counts.items() if count < MIN_ASK} == {}


def test_no_phrasing_is_empty(entries: list[Any]) -> None:
    empty = [name for name, part in parts(entries) for ask in part.ask if not ask.strip()]
    assert empty == []


def test_no_phrasing_is_in_two_entries(entries: list[Any]) -> None:
    # Follow-ups may repeat: "why?" belongs to the turn before it, and may follow any entry.
    owners: dict[str, set[str]] = {}
    for entry in entries:
        for ask in entry.ask:
            owners.setdefault(corpus.normal(ask), set()).add(entry.id)
    assert {form: ids for form, ids in owners.items() if len(ids) > 1} == {}


def test_follow_ups_have_questions_and_answers(entries: list[Any]) -> None:
    bare = [
        entry.id
        for entry in entries
        for follow in entry.follow
        if not follow.ask or not follow.answer.strip()
    ]
    assert bare == []
    assert any(entry.follow for entry in entries)


def test_answers_are_ascii(entries: list[Any]) -> None:
    assert [name for name, part in parts(entries) if not part.answer.isascii()] == []


def test_answers_are_one_to_four_sentences(entries: list[Any]) -> None:
    counts = [(name, sentences(part.answer)) for name, part in parts(entries)]
    assert [found for found in counts if not 1 <= found[1] <= MAX_SENTENCES] == []


def test_answers_are_short(entries: list[Any]) -> None:
    counts = [(name, len(part.answer.split())) for name, part in parts(entries)]
    assert [found for found in counts if found[1] > MAX_WORDS] == []


def test_questions_outside_the_subject_share_an_answer_that_points_to_a_larger_model(
    entries: list[Any],
) -> None:
    outside = [entry for entry in entries if entry.id.startswith(corpus.OUTSIDE)]
    assert len({entry.answer for entry in outside}) == 1
    assert "--model" in outside[0].answer
    assert sum(len(entry.ask) for entry in outside) >= 100


def test_two_phrasings_of_every_entry_are_held_out_of_training(entries: list[Any]) -> None:
    assert [entry.id for entry in entries if len(entry.held) < 2] == []
    trained = {corpus.normal(ask) for entry in entries for ask in entry.ask}
    held = {corpus.normal(ask) for entry in entries for ask in entry.held}
    assert held
    assert trained & held == set()


def test_a_fault_is_named(tmp_path: Path) -> None:
    entry = '[[entry]]\nid = "rope"\nask = ["what is rope?"]\nanswer = "A rotation."\n'
    (tmp_path / "a.toml").write_text(entry)
    fault = r"a\.toml: rope: 1 different phrasings, expected at least 12"
    with pytest.raises(ValueError, match=fault):
        corpus.read(tmp_path)
