"""The training corpus of pico is complete, and its answers are short."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PICO = Path(__file__).resolve().parents[1] / "tools/pico"

MIN_ENTRIES = 400  # not counting talk.toml
MAX_SENTENCES = 4
MAX_WORDS = 75


def load_corpus_module() -> ModuleType:
    # Load by path, because tools/pico is no package. dataclasses needs the module in sys.modules.
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


def test_some_entries_have_follow_ups(entries: list[Any]) -> None:
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


def test_a_fault_is_named(tmp_path: Path) -> None:
    entry = '[[entry]]\nid = "rope"\nask = ["what is rope?"]\nanswer = "A rotation."\n'
    (tmp_path / "a.toml").write_text(entry)
    fault = r"a\.toml: rope: 1 different phrasings, expected at least 12"
    with pytest.raises(ValueError, match=fault):
        corpus.read(tmp_path)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('id = "rope"\nask = ["what?"]\nanswer = 7', r"\(rope\): answer: expected a text, got 7"),
        ('id = "rope"\nask = ["what?"]', r"\(rope\): answer: expected a text, got nothing"),
        (
            'id = "rope"\nask = "what?"\nanswer = "x"',
            r"ask: expected a list of texts, got 'what\?'",
        ),
        ('id = "rope"\nask = ["x"]\nheld = [1]\nanswer = "x"', r"held: expected a list of texts"),
        ('ask = ["x"]\nanswer = "x"', r"entry 1 \(no id\): id: expected a text, got nothing"),
        ('id = "rope"\nask = []\nanswer = "x"', r"rope: 0 different phrasings"),
        ('id = "rope"\nask = ["x"]\nanswer = "x"\nfollow = "y"', r"follow: expected tables"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path: Path, table: str, fault: str) -> None:
    (tmp_path / "a.toml").write_text(f"[[entry]]\n{table}\n")
    with pytest.raises(ValueError, match=fault):
        corpus.read(tmp_path)


def test_a_single_table_is_a_named_fault(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[entry]\nid = "rope"\n')
    with pytest.raises(ValueError, match=r"a\.toml: entry: expected tables \[\[entry\]\]"):
        corpus.read(tmp_path)
