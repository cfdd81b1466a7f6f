"""Pictures of chapters 5 and 7: packed weights, and draft tokens and masks."""

from learn.pages import printed
from learn.svg import WIDTH, Drawing


def draw_quantization() -> str:
    """Draw the word that the program prints, its group, and the product with x."""
    first = printed("quantization")[0].split()
    word = int(first[1], 16)
    codes = [word >> 4 * i & 15 for i in range(8)]
    drawing = Drawing(
        400,
        "A quantized group",
        "A word of 32 bits has eight codes of 4 bits. Eight words, a scale and a bias are a "
        "group of 64 numbers. The product applies scale and bias once a group.",
    )
    drawing.text(WIDTH / 2, 26, f"a word of 32 bits: {first[1]}", "ink bold")
    left, cell = 20, 50
    for i in range(8):
        x = left + cell * (7 - i)
        drawing.box(x, 50, cell, 30, f"{codes[i]:04b}", "blue", style="mono ink")
        drawing.text(x + cell / 2, 44, f"{4 * i + 3}..{4 * i}", "soft small")
        drawing.text(x + cell / 2, 98, str(codes[i]), "mono ink")
    drawing.text(
        WIDTH / 2, 118, "codes 7 to 0 of the group: the first is in the lowest bits", "soft small"
    )
    drawing.text(WIDTH / 2, 156, "a group of 64 numbers: 288 bits", "ink bold")
    for i in range(8):
        drawing.box(left + 36 * i, 168, 36, 30, f"w{i}", "blue", style="mono ink")
    drawing.box(left + 288, 168, 56, 30, "scale", "amber")
    drawing.box(left + 344, 168, 56, 30, "bias", "green")
    drawing.text(left + 144, 216, "8 words: 256 bits", "soft small")
    drawing.text(left + 344, 216, "16 bits each", "soft small")

    drawing.text(WIDTH / 2, 256, "the product with x, for each group", "ink bold")
    drawing.box(20, 272, 180, 34, "sum of code * x", "blue")
    drawing.box(240, 272, 180, 34, "sum of x, once for all rows", "plain", style="ink small")
    drawing.line([(110, 306), (110, 326)], tip=True)
    drawing.line([(330, 306), (330, 326)], tip=True)
    drawing.box(60, 328, 100, 30, "* scale", "amber")
    drawing.box(280, 328, 100, 30, "* bias", "green")
    drawing.line([(160, 343), (205, 343)], tip=True)
    drawing.line([(280, 343), (235, 343)], tip=True)
    drawing.circle(220, 343, 13, "ground", stroke=True)
    drawing.text(220, 347.5, "+", "ink bold")
    drawing.text(220, 384, "added up over the groups of the row", "soft small")
    return drawing.svg()


def draw_speculation() -> str:
    """Draw a draft of which two tokens are accepted, and masks of a grammar."""
    drawing = Drawing(
        404,
        "Draft tokens and masks",
        "Two of four draft tokens equal the model's choices. The step appends three tokens. The "
        "mask of a grammar allows other tokens after each token.",
    )
    drawing.text(WIDTH / 2, 26, "one pass with four draft tokens", "ink bold")
    left, cell = 88, 69
    inputs = ["root", "mean", "square", "of", "the"]
    choices = ["mean", "square", "and", "a", "same"]
    for label, y in (("computed", 62), ("choices", 126)):
        drawing.text(12, y, label, "ink small", "start")
    for i, (token, choice) in enumerate(zip(inputs, choices, strict=True)):
        x = left + cell * i
        drawing.box(x, 42, cell - 6, 30, token, "plain" if i == 0 else "blue")
        accepted = i <= 2
        drawing.line([(x + 31, 72), (x + 31, 104)], tip=True)
        drawing.box(x, 106, cell - 6, 30, choice, "green" if accepted else "red")
        if 0 < i <= 2:
            drawing.line([(x - 38, 106), (x + 6, 74)], dashed=True)
    drawing.text(12, 160, "appended", "ink small", "start")
    drawing.text(left, 160, "mean square and", "mono ink", "start")
    drawing.text(left + cell * 3, 160, "after a wrong draft:", "soft small", "start")
    drawing.text(left + cell * 3, 176, "not used", "soft small", "start")

    drawing.text(WIDTH / 2, 218, 'the grammar "yes" or "no": masks', "ink bold")
    tokens = ["y", "n", "e", "o", "s", "es", "end"]
    texts = [("", {"y", "n"}), ("n", {"o"}), ("no", {"end"})]
    for row, (text, allowed) in enumerate(texts):
        y = 236 + 40 * row
        drawing.text(12, y + 20, f'after "{text}"', "ink small", "start")
        for i, token in enumerate(tokens):
            kind = "green" if token in allowed else "plain"
            x = left + 49 * i
            drawing.box(x, y, 43, 30, token, kind, style="mono ink")
    drawing.rect(88, 364, 15, 15, "green", radius=3)
    drawing.text(110, 376, "allowed", "soft small", "start")
    drawing.rect(184, 364, 15, 15, "plain", radius=3)
    drawing.text(206, 376, "score set to -inf", "soft small", "start")
    return drawing.svg()
