"""Pictures of chapters 4, 6 and 8: the KV cache, batches and pages, and a threadgroup."""

import re
from dataclasses import dataclass

from learn.pages import printed
from learn.svg import WIDTH, Drawing


def draw_generate() -> str:
    """Draw the tokens that each step computes, for a prompt of 5 tokens and 6 steps."""
    prompt, steps, size = 5, 6, 17
    columns = prompt + steps - 1
    without = sum(prompt + step for step in range(steps))
    drawing = Drawing(
        262,
        "Tokens computed by each step",
        "Without a cache each step computes all tokens so far. With a cache the first step "
        "computes the prompt, and each further step computes one token.",
    )
    for panel, (title, cached) in enumerate((("without a cache", False), ("with a cache", True))):
        left, top = 26 + 212 * panel, 62
        drawing.text(left + columns * size / 2, 28, title, "ink bold")
        computed = columns if cached else without
        drawing.text(left + columns * size / 2, 48, f"{computed} tokens computed", "soft small")
        for step in range(steps):
            y = top + (size + 3) * step
            drawing.text(left - 10, y + 13, str(step + 1), "soft small")
            for token in range(prompt + step):
                stored = cached and step > 0 and token < prompt + step - 1
                kind = "plain" if stored else "blue" if token < prompt else "amber"
                drawing.rect(left + size * token, y, size - 2, size, kind, radius=3)
    for i, (kind, label) in enumerate(
        (
            ("blue", "prompt, computed"),
            ("amber", "answer, computed"),
            ("plain", "from the cache"),
        )
    ):
        x = 18 + (0, 142, 284)[i]
        drawing.rect(x, 204, 15, 15, kind, radius=3)
        drawing.text(x + 21, 216, label, "soft small", "start")
    drawing.text(
        WIDTH / 2, 246, "a row for each step; a prompt of 5 tokens, 6 new tokens", "soft small"
    )
    return drawing.svg()


@dataclass(frozen=True)
class _Step:
    """A line that the program of chapter 6 prints."""

    running: int
    pages: int
    cached: int
    served: list[int]


def _steps() -> list[_Step]:
    """Read the table of steps."""
    found = []
    for line in printed("batching"):
        row = re.fullmatch(r" *\d+ +(\d+) +(\d+) +(\d+) \[([\d, ]*)\]", line)
        if row:
            served = [int(request) for request in row[4].split(",")]
            found.append(_Step(int(row[1]), int(row[2]), int(row[3]), served))
    return found


def draw_batching() -> str:
    """Draw the requests of the program over its steps, and the pages of two of them."""
    steps = _steps()
    requests = 1 + max(request for step in steps for request in step.served)
    drawing = Drawing(
        474,
        "Requests over steps, and pages",
        "Each of four requests gets a token in each of its steps, beside other requests. Two block "
        "tables have the same first page.",
    )
    left, top, cell, height = 92, 64, 22, 26
    drawing.text(left + cell * len(steps) / 2, 28, "tokens of each step", "ink bold")
    for number, step in enumerate(steps):
        x = left + cell * number
        drawing.text(x + cell / 2, 52, str(number), "soft small")
        for request in range(requests):
            served = request in step.served
            kind = ("blue", "green", "amber", "blue")[request] if served else "plain"
            opacity = 1 if served else 0.35
            y = top + height * request
            drawing.rect(
                x + 1, y, cell - 2, height - 4, kind, stroke=served, radius=3, opacity=opacity
            )
        drawing.text(x + cell / 2, top + height * requests + 16, str(step.pages), "mono soft")
        drawing.text(x + cell / 2, top + height * requests + 36, str(step.cached), "mono soft")
    for request in range(requests):
        y = top + height * request + 15
        drawing.text(left - 8, y, f"request {request}", "ink small", "end")
    drawing.text(left - 8, top + height * requests + 16, "pages held", "soft small", "end")
    drawing.text(left - 8, top + height * requests + 36, "cached", "soft small", "end")

    top = 246
    drawing.text(WIDTH / 2, top, "pages of requests 0 and 1 in step 3", "ink bold")
    tables = (("request 0", "blue", (0, 1, 2)), ("request 1", "green", (0, 3, 4)))
    for row, (name, kind, pages) in enumerate(tables):
        y = top + 22 + 146 * row
        drawing.text(12, y + 19, name, "ink small", "start")
        drawing.text(12, y + 34, "block table", "soft small", "start")
        for place, page in enumerate(pages):
            x = 92 + 74 * place
            drawing.box(x, y, 74, 34, str(page), kind, style="mono ink")
            target = (60 + 80 * page, top + 92 + (0 if row == 0 else 34))
            drawing.line([(x + 37, y + (34 if row == 0 else 0)), target], tip=True)
    for page in range(5):
        kind = ("plain", "blue", "blue", "green", "green")[page]
        drawing.box(24 + 80 * page, top + 92, 72, 34, f"page {page}", kind)
    drawing.text(
        WIDTH / 2, 466, "8 tokens a page; page 0: the first 8 tokens of both", "soft small"
    )
    return drawing.svg()


def draw_kernel() -> str:
    """Draw a threadgroup of two simdgroups that computes a row."""
    drawing = Drawing(
        440,
        "A threadgroup computes a row",
        "64 threads in two simdgroups add the squares of four numbers each. simd_sum adds 32 sums. "
        "Two partial sums go to threadgroup memory. After a barrier all threads read both.",
    )
    drawing.text(WIDTH / 2, 26, "x: a row of 256 numbers", "ink bold")
    width = 400 / 4
    for part in range(4):
        x = 20 + width * part
        drawing.box(x, 38, width / 2, 30, "32", "blue", style="mono ink")
        drawing.box(x + width / 2, 38, width / 2, 30, "32", "green", style="mono ink")
        drawing.line([(x + 25, 68), (100 + 8 * part, 112)])
        drawing.line([(x + 75, 68), (316 + 8 * part, 112)])
    for group, kind in enumerate(("blue", "green")):
        x = 30 + 214 * group
        drawing.box(x, 114, 166, 34, f"simdgroup {group}: 32 threads", kind)
        drawing.text(x + 83, 166, "each adds 4 squares", "soft small")
        drawing.line([(x + 83, 174), (x + 83, 190)], tip=True)
        drawing.box(x + 33, 192, 100, 30, "simd_sum", kind, style="mono ink")
        drawing.line([(x + 83, 222), (188 + 64 * group, 250)], tip=True)
    drawing.box(156, 252, 64, 34, "sum 0", "amber")
    drawing.box(220, 252, 64, 34, "sum 1", "amber")
    drawing.text(148, 273, "threadgroup memory", "soft small", "end")
    drawing.line([(20, 304), (420, 304)], dashed=True, accent=True)
    drawing.text(420, 298, "barrier", "ink bold", "end")
    drawing.line([(188, 286), (130, 326)], tip=True)
    drawing.line([(252, 286), (310, 326)], tip=True)
    drawing.box(30, 328, 380, 34, "all 64 threads: 1 / sqrt((sum 0 + sum 1) / 256 + eps)")
    drawing.line([(220, 362), (220, 384)], tip=True)
    drawing.box(20, 386, 400, 30, "y: each thread writes its four numbers", "plain")
    return drawing.svg()
