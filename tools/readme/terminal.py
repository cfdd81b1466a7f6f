"""An animated terminal as an SVG with a light and a dark palette.

The times are not those of the program: pico writes an answer in a few hundredths of a second. Keys
and words appear at the rates below, so that a reader can follow. A program that shows no animations
shows the whole text, as does one whose user asked for less motion.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from readme.recording import PROMPT

COLUMNS = 72
"""Characters a line of the terminal."""

_KEYS_PER_SECOND = 16
_WORDS_PER_SECOND = 14
_PAUSE = 0.8  # seconds before the first key, and after an answer
_CHARACTER, _LINE, _MARGIN, _BAR = 9.0, 22, 20, 34  # in units of the drawing
_LIGHT = {"ground": "#f6f8fa", "bar": "#e4e9ef", "ink": "#1f2937", "key": "#1d4fb8"}
_DARK = {"ground": "#161b22", "bar": "#262d37", "ink": "#e6e9ef", "key": "#8ab0ff"}


@dataclass(frozen=True)
class Piece:
    """A piece of text that appears at once."""

    row: int
    column: int
    text: str
    kind: str  # of the palette
    time: float  # seconds after the start


def pieces(command: str, lines: Sequence[str]) -> Iterator[Piece]:
    """Yield a shell command, and the lines of the program that it starts.

    Lines that begin with the prompt were typed: a key is a piece. Other lines are output: a word
    is a piece.
    """
    time = _PAUSE
    for row, line in enumerate([f"$ {command}", *lines]):
        typed = row == 0 or line.startswith(PROMPT)
        if typed and row > 0:
            time += _PAUSE
        prompt = len(PROMPT) if typed else 0
        if typed:
            yield Piece(row, 0, line[:prompt].rstrip(), "ink", 0 if row == 0 else time)
            time += _PAUSE
        for found in re.finditer(r"\S" if typed else r"\S+", line[prompt:]):
            kind = "key" if typed else "ink"
            yield Piece(row, prompt + found.start(), found[0], kind, time)
            time += 1 / (_KEYS_PER_SECOND if typed else _WORDS_PER_SECOND)
        if typed:
            time += _PAUSE / 2


def terminal_picture(command: str, lines: Sequence[str]) -> str:
    """Return an SVG in which a command is typed and a program answers.

    Args:
        command: what is typed first.
        lines: the lines of the terminal after it, of at most `COLUMNS` characters.
    """
    width = round(COLUMNS * _CHARACTER + 2 * _MARGIN)
    height = _BAR + _LINE * (len(lines) + 1) + _MARGIN
    style = (
        "text{font:15px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
        "animation:show .01s backwards}@keyframes show{from{visibility:hidden}}"
        "@media(prefers-reduced-motion:reduce){text{animation:none}}"
        f"{_rules(_LIGHT)}@media(prefers-color-scheme:dark){{{_rules(_DARK)}}}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        "<title>A conversation with pico in a terminal</title>",
        f"<desc>{escape(' '.join([command, *lines]))}</desc>",
        f"<style>{style}</style>",
        f'<rect width="{width}" height="{height}" rx="10" class="ground"/>',
        f'<path d="M0 24V10A10 10 0 0 1 10 0H{width - 10}A10 10 0 0 1 {width} 10V24z" '
        'class="bar"/>',
        *(_text(piece) for piece in pieces(command, lines)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(piece: Piece) -> str:
    """Return a piece. `textLength` gives its characters their width in any font."""
    x, y = _MARGIN + _CHARACTER * piece.column, _BAR + _LINE * (piece.row + 1) - 6
    delay = f"{piece.time:.2f}".rstrip("0").rstrip(".")
    return (
        f'<text x="{x:g}" y="{y}" class="{piece.kind}" textLength="'
        f'{_CHARACTER * len(piece.text):g}" style="animation-delay:{delay}s">'
        f"{escape(piece.text)}</text>"
    )


def _rules(palette: dict[str, str]) -> str:
    return "".join(f".{name}{{fill:{color}}}" for name, color in palette.items())
