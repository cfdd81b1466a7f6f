"""The terminal: which stream gets what, and no control codes where they do not belong."""

from collections.abc import Callable
from io import StringIO

import pytest
from tinyllm_chat.progress import ProgressBar
from tinyllm_chat.terminal import Terminal

Make = Callable[..., StringIO]


def test_lines_are_finished_before_others_begin(screen: Make) -> None:
    out = err = screen(terminal=False)
    terminal = Terminal(out, err, {})
    terminal.answer("said")
    terminal.notice("mind")
    terminal.finish_line()
    terminal.aside("figures")
    assert out.getvalue() == "said\nchat: mind\nfigures\n"


def test_an_answer_begins_a_line_after_thinking(screen: Make) -> None:
    out, err = screen(terminal=False), screen(terminal=False)
    terminal = Terminal(out, err, {})
    terminal.thought("hm")
    terminal.answer("so")
    terminal.answer(" be it")
    assert (err.getvalue(), out.getvalue()) == ("hm\n", "so be it")


@pytest.mark.parametrize(
    ("is_terminal", "environ", "dim"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_thinking_is_dim_where_that_can_be_shown(
    screen: Make, is_terminal: bool, environ: dict[str, str], dim: bool
) -> None:
    err = screen(terminal=is_terminal)
    Terminal(screen(terminal=False), err, environ).thought("hm")
    assert err.getvalue() == ("\x1b[2mhm\x1b[0m" if dim else "hm")


def test_control_characters_of_a_model_do_not_reach_a_terminal_but_a_file(screen: Make) -> None:
    spoken = "a\x1b]0;title\x07\r\n\tb\x7f\x9b"
    for is_terminal, shown in ((True, "a␛]0;title␇\n\tb␡\ufffd"), (False, spoken)):
        out = screen(terminal=is_terminal)
        Terminal(out, screen(terminal=False), {}).answer(spoken)
        assert out.getvalue() == shown


@pytest.mark.parametrize("columns", ["20", "200"])
def test_a_bar_appears_for_what_takes_long_and_goes_again(
    screen: Make, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setattr("tinyllm_chat.progress._PATIENCE", -1.0)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    err = screen(terminal=True)
    with ProgressBar("loading", Terminal(screen(terminal=False), err, {"TERM": "xterm"})) as bar:
        bar(1, 2)
    assert "loading" in err.getvalue()
    assert err.getvalue().endswith("\x1b[2K")  # the line is erased


@pytest.mark.parametrize(("is_terminal", "patience"), [(False, -1.0), (True, 60.0)])
def test_no_bar_for_what_is_quick_or_where_nobody_looks(
    screen: Make, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, patience: float
) -> None:
    monkeypatch.setattr("tinyllm_chat.progress._PATIENCE", patience)
    err = screen(terminal=is_terminal)
    with ProgressBar("loading", Terminal(screen(terminal=False), err, {"TERM": "xterm"})) as bar:
        bar(1, 2)
    assert err.getvalue() == ""
