"""Pictures of the README: a recording, an animation, the packages, and speeds."""

import re

import pytest
from readme.packages import dependencies
from readme.pictures import IMAGES, PICTURES
from readme.recording import record
from readme.speed import Group, all_groups, speed_picture
from readme.terminal import COLUMNS, pieces, terminal_picture


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_in_the_docs_is_the_one_that_is_drawn(name: str) -> None:
    stored = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    assert stored == PICTURES[name](), "run `uv run python tools/readme`"


def test_a_recording_has_questions_and_answers_alone() -> None:
    question, *answer = record(["what does rmsnorm do?"], COLUMNS)
    assert question == "> what does rmsnorm do?"
    assert "root mean square" in " ".join(answer)
    assert all(len(line) <= COLUMNS for line in answer)


def test_keys_and_words_appear_in_reading_order() -> None:
    found = list(pieces("ab", ["> c", "two words"]))
    times = [piece.time for piece in found]
    assert [piece.text for piece in found] == ["$", "a", "b", ">", "c", "two", "words"]
    assert times == sorted(times)
    assert [(piece.row, piece.column) for piece in found[-2:]] == [(2, 0), (2, 4)]


def test_text_in_a_picture_is_escaped() -> None:
    assert ">&lt;b&gt;</text>" in terminal_picture("x", ["<b>"])


def test_only_direct_dependencies_are_drawn() -> None:
    needs = dependencies()
    assert needs["tinyllm-engine"] == {"tinyllm-qwen"}
    assert needs["tinyllm-kernels"] == needs["tinyllm-qwen"] == {"tinyllm-layers"}
    assert needs["metalhost"] == needs["tinyllm-ops"] == set()


def test_the_longest_bar_of_each_group_has_the_same_length() -> None:
    bars = re.findall(r'<rect x="14" [^>]*?width="([\d.]+)" height="14"', speed_picture())
    assert sum(float(bar) == 352 for bar in bars) == 9
    assert len(all_groups()) >= 9


@pytest.mark.parametrize(("other", "is_lost"), [(2.0, True), (0.5, False)])
def test_a_group_is_lost_if_another_program_is_faster(other: float, is_lost: bool) -> None:
    assert Group("x", {"cpu": 1.0, "llama.cpp": other}).is_lost == is_lost
