"""The picture of docs/gated-delta-net.md: the memory of a text by its length."""

import math
from collections.abc import Callable
from pathlib import Path

from learn.svg import WIDTH, Drawing

STATE_PICTURE = Path(__file__).parents[2] / "docs" / "img" / "state-memory.svg"

STATE = 18 * (16 * 128 * 128 * 4 + 3 * 6144 * 2)
"""Bytes of the states of Qwen3.5-0.8B: 18 layers, matrices in float32, inputs in bfloat16."""
KV = 6 * 2 * 2 * 256 * 2
"""Bytes of the keys and values of a token in its 6 attention layers, in bfloat16."""
QWEN3_KV = 28 * 2 * 8 * 128 * 2
"""The same of Qwen3-0.6B, with 28 attention layers."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 424, 44, 274
_FIRST, _LAST = 6, 18  # 64 to 262,144 tokens, in powers of two
_LOW, _HIGH = 20, 34  # 1 MiB to 16 GiB, in powers of two
_QWEN3_CONTEXT = 40_960


def _point(tokens: float, size: float) -> tuple[float, float]:
    """Return the place of a length and a number of bytes. Both axes are logarithmic."""
    x = (math.log2(tokens) - _FIRST) / (_LAST - _FIRST)
    y = (math.log2(size) - _LOW) / (_HIGH - _LOW)
    return _LEFT + (_RIGHT - _LEFT) * x, _BOTTOM - (_BOTTOM - _TOP) * y


def _curve(size: Callable[[float], float], last: float = 1 << _LAST) -> list[tuple[float, float]]:
    """Return points of a curve from the first length at which it is at least 1 MiB."""
    steps = [2.0 ** (_FIRST + i / 2) for i in range(2 * (_LAST - _FIRST) + 1)]
    lengths = [n for n in steps if n < last and size(n) >= 1 << _LOW] + [last]
    return [_point(n, size(n)) for n in lengths]


def draw_state_memory() -> str:
    """Draw the bytes of states, keys and values by the length of the text."""
    drawing = Drawing(
        356,
        "Memory of a text by its length",
        "The states of Qwen3.5-0.8B take 18.6 MiB for every length. The keys and values of its six "
        "attention layers grow by 12 KiB a token, those of Qwen3-0.6B by 112 KiB a token.",
    )
    drawing.text(12, 26, "memory of one text, by its length in tokens", "ink bold", "start")
    for power in (22, 26, 30, 34):
        _, y = _point(1, 1 << power)
        drawing.rect(_LEFT, y - 0.5, _RIGHT - _LEFT, 1, "plain", stroke=False, radius=0)
        label = f"{1 << power - 20} MiB" if power < 30 else f"{1 << power - 30} GiB"
        drawing.text(_LEFT - 6, y + 4, label, "soft small", "end")
    drawing.line([(_LEFT, _TOP), (_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)])
    for power in range(_FIRST, _LAST + 1, 3):
        x, _ = _point(1 << power, 1)
        drawing.line([(x, _BOTTOM), (x, _BOTTOM + 5)])
        anchor = "end" if power == _LAST else "middle"
        drawing.text(x, _BOTTOM + 19, f"{1 << power:,}", "soft small", anchor)

    drawing.line(_curve(lambda n: QWEN3_KV * n, _QWEN3_CONTEXT))
    drawing.line(_curve(lambda n: KV * n), dashed=True)
    drawing.line(_curve(lambda _: STATE), dashed=True)
    drawing.line(_curve(lambda n: STATE + KV * n), accent=True)
    x, y = _point(_QWEN3_CONTEXT, QWEN3_KV * _QWEN3_CONTEXT)
    drawing.circle(x, y, 3.5, "line")
    drawing.text(x - 8, y - 6, "Qwen3-0.6B: keys and values", "ink small", "end")
    x, y = _point(STATE / KV, STATE)
    drawing.circle(x, y, 4, "strong")
    drawing.text(x + 10, y + 16, f"{STATE / KV:,.0f} tokens: equal", "soft small", "start")
    drawing.text(_RIGHT, y - 6, "states of 18 layers", "soft small", "end")
    x, y = _point(512, KV * 512)
    drawing.text(x + 10, y + 10, "keys and values of 6 layers", "soft small", "start")

    rows = (("strong", "Qwen3.5-0.8B: states, keys and values"), ("line", "its parts (dashed)"))
    for place, (kind, label) in enumerate(rows):
        left = (18, 286)[place]
        drawing.rect(left, 312, 15, 4, kind, stroke=False, radius=2)
        drawing.text(left + 22, 318, label, "soft small", "start")
    drawing.text(
        WIDTH / 2,
        342,
        "both axes are logarithmic; matrices float32, the rest bfloat16",
        "soft small",
    )
    return drawing.svg()
