"""Word wrap of streamed text on a terminal."""

import io
import os
import textwrap
from collections.abc import Callable

import pytest
from tinyllm_chat.terminal.output import Terminal
from tinyllm_chat.terminal.word_wrap import WordWrap

PROSE = (
    "RMSNorm divides a vector by its root mean square, and multiplies it by a weight: it subtracts "
    "no mean (LayerNorm does), has no bias and costs one pass over the vector's values."
)

NewScreen = Callable[..., io.StringIO]
SetColumns = Callable[[int], None]


def wrap(text: str, columns: int) -> str:
    return WordWrap().push(text + "\n", columns).removesuffix("\n")


@pytest.mark.parametrize("columns", [15, 20, 33, 80, 1000])
def test_prose_is_wrapped_as_by_textwrap(columns: int) -> None:
    expected = textwrap.fill(PROSE, columns, break_on_hyphens=False)
    assert wrap(PROSE, columns) == expected


@pytest.mark.parametrize("text", [PROSE, "  a\tb\n\nc  d", "我是一个模型。" * 9, "x" * 99 + " y z"])
def test_the_division_into_pieces_changes_nothing(text: str) -> None:
    wrapper = WordWrap()
    assert "".join(wrapper.push(char, 20) for char in text + "\n") == wrap(text, 20) + "\n"


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abc de", 6, "abc de"),
        ("abc def", 6, "abc\ndef"),
        ("abcdef gh", 6, "abcdef\ngh"),
        ("abcdef   ", 6, "abcdef"),  # the terminal would put the spaces on the next line
        ("abcdef\n\ngh", 6, "abcdef\n\ngh"),
        ("  ab cd", 6, "  ab\ncd"),
        ("a\tb cd", 11, "a\tb\ncd"),
        ("a\tb", 6, "a\nb"),
        ("ab abcdefghi cd", 6, "ab abcdefghi\ncd"),  # the terminal breaks it: ab abc defghi
        ("ab abcdefgh cde", 6, "ab abcdefgh\ncde"),
        ("我是一个模型。", 6, "我是一\n个模\n型。"),
        ("ab我 cd", 4, "ab我\ncd"),
        ("ab我c", 4, "ab我\nc"),
        ("e\u0301e\u0301 e\u0301", 4, "e\u0301e\u0301 e\u0301"),
        ("e\u0301e\u0301 e\u0301e\u0301", 4, "e\u0301e\u0301\ne\u0301e\u0301"),
        ("a \N{WOMAN}\u200d\N{ROCKET}", 5, "a\n\N{WOMAN}\u200d\N{ROCKET}"),
    ],
)
def test_spaces_tabs_long_words_and_wide_characters(text: str, columns: int, shown: str) -> None:
    assert wrap(text, columns) == shown


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_tiny_terminal_loses_no_letters(columns: int) -> None:
    text = PROSE + "我是"
    assert "".join(wrap(text, columns).split()) == "".join(text.split())


def test_only_the_current_word_is_held_back() -> None:
    wrapper = WordWrap()
    pieces = ("R", "MS", " norm", "s ", "x" * 11, "y", "\n")
    shown = ["", "", "RMS", " norms", " " + "x" * 11, "y", "\n"]
    assert [wrapper.push(text, 10) for text in pieces] == shown


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> SetColumns:
    """Set the width of every terminal."""

    def resize(count: int) -> None:
        size = os.terminal_size((count, 24))
        monkeypatch.setattr(
            "tinyllm_chat.terminal.output.os.get_terminal_size", lambda _handle: size
        )

    return resize


def test_the_width_is_read_again_for_each_piece(
    make_screen: NewScreen, columns: SetColumns
) -> None:
    out = make_screen(terminal=True, descriptor=1)
    terminal = Terminal(out, make_screen(), {})
    for count in (8, 20):
        columns(count)
        terminal.answer("one two three")
        terminal.finish_line()
    assert out.getvalue() == "one two\nthree\none two three\n"


def test_an_unfinished_line_is_shown_completely(
    make_screen: NewScreen, columns: SetColumns
) -> None:
    both = make_screen(terminal=True, descriptor=1)
    columns(80)
    terminal = Terminal(both, both, {"NO_COLOR": "1"})
    terminal.answer("half a wor")
    terminal.notice("stopped")
    assert both.getvalue() == "half a wor\nchat: stopped\n"


def test_reasoning_that_was_held_back_is_dim_too(
    make_screen: NewScreen, columns: SetColumns
) -> None:
    err = make_screen(terminal=True, descriptor=2)
    columns(80)
    terminal = Terminal(make_screen(), err, {"TERM": "xterm"})
    terminal.reasoning("a wor")
    terminal.answer("so")
    assert err.getvalue() == "\x1b[2ma\x1b[0m\x1b[2m wor\n\x1b[0m"


def test_a_file_gets_the_text_unchanged(make_screen: NewScreen, columns: SetColumns) -> None:
    out = make_screen()
    columns(8)
    terminal = Terminal(out, make_screen(terminal=True), {})
    for text in ("one two ", "three  ", "\r\n"):
        terminal.answer(text)
        assert out.getvalue().endswith(text)
    assert out.getvalue() == "one two three  \r\n"
