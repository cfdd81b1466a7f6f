"""The terminal: output streams, colors, control characters and the progress bar."""

from collections.abc import Callable
from io import StringIO

import pytest
from tinyllm_chat.terminal.output import Terminal
from tinyllm_chat.terminal.progress import ProgressBar

MakeScreen = Callable[..., StringIO]


def test_a_notice_begins_a_new_line(make_screen: MakeScreen) -> None:
    out = err = make_screen(terminal=False)
    terminal = Terminal(out, err, {})
    terminal.answer("answer")
    terminal.notice("notice")
    terminal.finish_line()  # writes nothing, because the notice has finished its line
    terminal.info("info")
    assert out.getvalue() == "answer\nchat: notice\ninfo\n"


def test_an_answer_begins_a_new_line_after_reasoning(make_screen: MakeScreen) -> None:
    out, err = make_screen(terminal=False), make_screen(terminal=False)
    terminal = Terminal(out, err, {})
    terminal.reasoning("hm")
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
def test_reasoning_is_dim_on_a_terminal_with_colors(
    make_screen: MakeScreen, is_terminal: bool, environ: dict[str, str], dim: bool
) -> None:
    err = make_screen(terminal=is_terminal)
    Terminal(make_screen(terminal=False), err, environ).reasoning("hm")
    assert err.getvalue() == ("\x1b[2mhm\x1b[0m" if dim else "hm")


def test_control_characters_reach_files_but_not_terminals(make_screen: MakeScreen) -> None:
    text = "a\x1b]0;title\x07\r\n\tb\x7f\x9b"
    for is_terminal, shown in ((True, "a␛]0;title␇\n\tb␡\ufffd"), (False, text)):
        out = make_screen(terminal=is_terminal)
        Terminal(out, make_screen(terminal=False), {}).answer(text)
        assert out.getvalue() == shown


@pytest.mark.parametrize("columns", ["20", "200"])
def test_the_bar_appears_for_long_work_and_is_erased_at_any_width(
    make_screen: MakeScreen, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setattr("tinyllm_chat.terminal.progress._DELAY", -1.0)  # show the bar at once
    monkeypatch.setenv("COLUMNS", columns)  # rich reads COLUMNS and TERM from the environment
    monkeypatch.setenv("TERM", "xterm")
    err = make_screen(terminal=True)
    with ProgressBar(
        "loading", Terminal(make_screen(terminal=False), err, {"TERM": "xterm"})
    ) as bar:
        bar(1, 2)
    assert "loading" in err.getvalue()
    assert err.getvalue().endswith("\x1b[2K")  # the line is erased


@pytest.mark.parametrize(("is_terminal", "delay"), [(False, -1.0), (True, 60.0)])
def test_no_bar_for_short_work_or_without_a_terminal(
    make_screen: MakeScreen, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, delay: float
) -> None:
    monkeypatch.setattr("tinyllm_chat.terminal.progress._DELAY", delay)
    err = make_screen(terminal=is_terminal)
    with ProgressBar(
        "loading", Terminal(make_screen(terminal=False), err, {"TERM": "xterm"})
    ) as bar:
        bar(1, 2)
    assert err.getvalue() == ""


@pytest.mark.parametrize("label", ["loading ck/a[/b]c", "loading ck/s[mlx]", "loading a:cat:"])
def test_the_label_of_the_bar_is_no_markup(
    make_screen: MakeScreen, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    monkeypatch.setattr("tinyllm_chat.terminal.progress._DELAY", -1.0)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    err = make_screen(terminal=True)
    with ProgressBar(label, Terminal(make_screen(), err, {"TERM": "xterm"})) as bar:
        bar(1, 2)
    assert label in err.getvalue()
