"""Pictures of chapters 1 to 3: attention, positions, and the layers of pico."""

import math

from learn.pages import printed
from learn.svg import WIDTH, Drawing


def draw_attention() -> str:
    """Draw the weights that the program of the chapter prints."""
    rows = [line.split() for line in printed("attention") if line.split()[0].isalpha()]
    rows = [row for row in rows if len(row) == 8 and row[1].isdigit()]
    rows += [line.split() for line in printed("attention") if line.split()[0] == "?"]
    names = [row[0] for row in rows]
    weights = [[int(cell) for cell in row[1:]] for row in rows]
    cell, left, top = 46, 84, 78
    drawing = Drawing(
        top + 46 * len(rows) + 44,
        "Attention weights",
        "A row for each token, with the weights of the tokens that it sees, in percent.",
    )
    drawing.text(left, 26, "keys: the tokens that are read", "ink bold", "start")
    drawing.text(12, 26, "queries", "ink bold", "start")
    for i, name in enumerate(names):
        drawing.text(left + cell * (i + 0.5), top - 14, name, "mono ink")
        drawing.text(left - 12, top + cell * (i + 0.5) + 4, name, "mono ink", "end")
        for j, weight in enumerate(weights[i]):
            x, y = left + cell * j, top + cell * i
            if j > i:
                drawing.rect(x + 2, y + 2, cell - 4, cell - 4, "plain", stroke=False, opacity=0.6)
                continue
            drawing.rect(x + 2, y + 2, cell - 4, cell - 4, "plain", stroke=False)
            drawing.rect(
                x + 2, y + 2, cell - 4, cell - 4, "strong", stroke=False, opacity=weight / 160
            )
            drawing.text(x + cell / 2, y + cell / 2 + 4.5, str(weight), "ink")
    below = top + cell * len(rows) + 26
    drawing.text(left, below, "percent; empty: later tokens, masked", "soft", "start")
    return drawing.svg()


def draw_positions() -> str:
    """Draw three pairs at positions 0 to 5, and query heads over key/value heads."""
    drawing = Drawing(
        432,
        "Rotary positions and grouped heads",
        "Pair 0 turns by 57 degrees a token, pair 4 by 10 degrees, pair 8 by 2 degrees. Query "
        "heads 0 and 1 read key/value head 0, query heads 2 and 3 read key/value head 1.",
    )
    drawing.text(WIDTH / 2, 28, "three of 32 pairs, at positions 0 to 5", "ink bold")
    for column, pair in enumerate((0, 4, 8)):
        step = 1e6 ** (-pair / 32)
        x, y, radius = 80 + 140 * column, 116, 56
        drawing.circle(x, y, radius, "plain", stroke=True)
        for position in range(6):
            angle = position * step
            end = (x + radius * math.cos(angle), y - radius * math.sin(angle))
            drawing.line([(x, y), end], accent=position == 0)
            drawing.circle(*end, 3, "strong")
            # Labels of positions that are less than 15 pixels apart would overlap.
            if step * radius > 15 or position in (0, 5):
                out = radius + 12
                at = (x + out * math.cos(angle), y - out * math.sin(angle) + 4)
                drawing.text(*at, str(position), "small soft")
        drawing.text(x, 206, f"pair {pair}", "ink")
        drawing.text(x, 224, f"{math.degrees(step):.1f}° a token", "soft small")
    drawing.text(WIDTH / 2, 268, "4 query heads, 2 key/value heads", "ink bold")
    for head in range(4):
        x = 24 + 102 * head
        drawing.box(x, 286, 86, 34, f"query {head}", "blue")
        drawing.line([(x + 43, 320), (112 + 204 * (head // 2), 364)], tip=True)
    for head in range(2):
        drawing.box(38 + 204 * head, 366, 150, 34, f"key, value {head}", "green")
    drawing.text(WIDTH / 2, 420, "stored: 2 x 2 x 64 numbers a token and layer", "soft small")
    return drawing.svg()


def draw_model() -> str:
    """Draw the parts of pico with their shapes and their numbers of weights."""
    table, layers = 2048 * 256, 6
    attention = 256 * (4 + 2 + 2 + 4) * 64 + 2 * 64  # q, k, v, o, and the norms of q and k
    mlp = 3 * 256 * 768
    drawing = Drawing(
        596,
        "The layers of pico",
        "Ids become vectors of 256 numbers. Six layers add attention and an MLP to them. A norm "
        "and the head give 2,048 logits.",
    )
    stream, left, width = 56, 104, 210
    drawing.text(420, 28, "weights", "ink bold", "end")

    def part(y: float, label: str, count: int | str, kind: str) -> None:
        drawing.box(left, y, width, 34, label, kind)
        shown = f"{count:,}" if isinstance(count, int) else count
        drawing.text(420, y + 22, shown, "mono soft", "end")

    drawing.text(stream, 28, "ids", "ink")
    drawing.text(stream + 14, 28, "L", "mono soft", "start")
    part(46, "embedding: V = 2,048 rows", table, "green")
    drawing.line([(stream, 36), (stream, 63), (left - 2, 63)], tip=True)
    drawing.line([(left + width / 2, 80), (left + width / 2, 96), (stream, 96), (stream, 410)])
    drawing.text(stream + 8, 114, "x", "mono ink", "start")
    drawing.text(stream + 20, 114, "L 256", "mono soft", "start")
    drawing.rect(14, 122, 416, 286, "ground", opacity=0, dashed=True)
    drawing.text(420, 144, "6 layers, each:", "ink bold", "end")
    rows = [
        (156, "norm", 256, "plain"),
        (198, "attention: H = 4, Hkv = 2", attention, "blue"),
        (292, "norm", 256, "plain"),
        (334, "MLP: F = 768", mlp, "amber"),
    ]
    for y, label, count, kind in rows:
        part(y, label, count, kind)
    for norm, half in ((156, 198), (292, 334)):
        drawing.line([(stream, norm + 17), (left - 2, norm + 17)], tip=True)
        drawing.line([(left + width / 2, norm + 34), (left + width / 2, half - 1)], tip=True)
        joined = half + 54
        drawing.line(
            [(left + width / 2, half + 34), (left + width / 2, joined), (stream + 11, joined)],
            tip=True,
        )
        drawing.circle(stream, joined, 9, "ground", stroke=True)
        drawing.text(stream, joined + 4.5, "+", "ink bold")
    drawing.line([(stream, 410), (stream, 443), (left - 2, 443)], tip=True)
    part(426, "norm", 256, "plain")
    drawing.line([(left + width / 2, 460), (left + width / 2, 473)], tip=True)
    part(474, "head: the same table", "0", "green")
    drawing.line([(left + width / 2, 508), (left + width / 2, 530)], tip=True)
    drawing.text(left + width / 2, 548, "logits, V = 2,048 a token", "ink")
    total = table + layers * (attention + 2 * 256 + mlp) + 256
    drawing.text(420, 580, f"all: {total:,}", "mono ink", "end")
    return drawing.svg()
