"""StopStrings: text in any chunks ends before the stop string that is complete first."""

import random
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_qwen.text.stop import StopStrings

words = st.text("ab", min_size=1, max_size=5)


def before_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """Return the text before the first complete stop string, and whether there is one."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(words, max_size=5))
def test_any_cut_shows_the_text_before_the_first_stop(chunks: list[str], stops: list[str]) -> None:
    finder = StopStrings(stops)
    shown, stopped = "", False
    for index, chunk in enumerate(chunks):
        piece, stopped = finder.push(chunk)
        shown += piece
        seen = "".join(chunks[: index + 1])
        expected, expected_stop = before_stop(seen, stops)
        assert stopped == expected_stop
        # The held text is no longer than necessary: the longest end that may become a stop string.
        held = max(
            (size for stop in stops for size in range(len(stop)) if seen.endswith(stop[:size])),
            default=0,
        )
        assert shown == (expected if stopped else seen[: len(seen) - held])
    assert (shown + finder.flush(), stopped) == before_stop("".join(chunks), stops)
    if stopped:
        assert finder.found in stops
        assert "".join(chunks).startswith(f"{shown}{finder.found}")
    else:
        assert finder.found is None


@pytest.mark.parametrize(
    ("stops", "chunks", "expected"),
    [
        (["</s>"], ["a<", "/", "s", ">b"], [("a", False), ("", False), ("", False), ("", True)]),
        (["ab", "abc"], ["xabc"], [("x", True)]),
        (["abcd", "bc"], ["xab", "c"], [("x", False), ("a", True)]),
        (["b", "ab"], ["a", "b"], [("", False), ("", True)]),
        (["aab"], ["aaa", "b"], [("a", False), ("", True)]),
        (["\n\n"], ["a\n", "b\n", "\nc"], [("a", False), ("\nb", False), ("", True)]),
        (["。"], ["日本", "語。x"], [("日本", False), ("語", True)]),
        ([], ["any", ""], [("any", False), ("", False)]),
    ],
)
def test_text_is_held_back_only_while_it_may_be_a_stop(
    stops: list[str], chunks: list[str], expected: list[tuple[str, bool]]
) -> None:
    finder = StopStrings(stops)
    assert [finder.push(chunk) for chunk in chunks] == expected


def test_held_back_text_is_shown_at_the_end() -> None:
    finder = StopStrings(["stop"])
    assert finder.push("a sto") == ("a ", False)
    assert finder.flush() == "sto"
    assert finder.flush() == ""


def test_nothing_is_shown_after_a_stop() -> None:
    finder = StopStrings(["x"])
    assert finder.push("axb") == ("a", True)
    assert finder.push("c") == ("", True)
    assert finder.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopStrings(["a", ""])


def test_time_is_linear_however_much_stops_overlap() -> None:
    stops = ["a" * size + "b" for size in range(1, 200)]
    start = time.perf_counter()
    finder = StopStrings(stops)
    shown = "".join(finder.push("a" * 100)[0] for _ in range(2000))
    assert shown + finder.flush() == "a" * 200_000
    assert time.perf_counter() - start < 30  # takes 1 s; a quadratic search takes minutes


def test_many_searches_for_the_same_stops_cost_as_much_as_one() -> None:
    stops = ["".join(random.Random(seed).choices("abc", k=1000)) for seed in range(16)]
    tracemalloc.start()
    try:
        finders = [StopStrings(stops) for _ in range(32)]
        assert all(finder.push(stops[0][:9]) == ("", False) for finder in finders)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # 3 MB; one automaton each: 128 MB
    finally:
        tracemalloc.stop()
    assert [finder.push(stops[0][9:]) for finder in finders] == [("", True)] * 32
