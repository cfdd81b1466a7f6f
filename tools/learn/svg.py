"""SVG drawings with a light and a dark palette.

A drawing has its own ground, so that it can be read on any page. Its palette follows
`prefers-color-scheme`, which for an image is the `color-scheme` of the page around it.
"""

from html import escape

WIDTH = 440
"""The width of all drawings. At 390 pixels of a phone, a text of 13 keeps 11 pixels."""

_LIGHT = {
    "ground": "#ffffff",
    "ink": "#1f2937",
    "soft": "#536074",
    "line": "#64748b",
    "plain": "#f1f5f9",
    "blue": "#dbe7ff",
    "green": "#d3f5e1",
    "amber": "#fdecc4",
    "red": "#fbd9d9",
    "strong": "#2f5fc4",
}
_DARK = {
    "ground": "#1e2129",
    "ink": "#e6e9ef",
    "soft": "#aab4c4",
    "line": "#8592a6",
    "plain": "#2b303b",
    "blue": "#2a3f6b",
    "green": "#1f4d3a",
    "amber": "#5a4516",
    "red": "#5f2b2f",
    "strong": "#8ab0ff",
}
_FONT = "system-ui,-apple-system,Segoe UI,Roboto,sans-serif"
_MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"


def _rules(palette: dict[str, str]) -> str:
    fills = "".join(f".{name}{{fill:{color}}}" for name, color in palette.items())
    return f"{fills}.stroke{{stroke:{palette['line']}}}.accent{{stroke:{palette['strong']}}}"


class Drawing:
    """A drawing of the width `WIDTH`, to which elements are added from back to front.

    A `kind` is a color of the palette, such as "blue" or "ink".
    """

    def __init__(self, height: int, title: str, description: str) -> None:
        """Start with the ground.

        Args:
            height: the height in units of the drawing.
            title: a short title, for screen readers.
            description: the content in words, for screen readers.
        """
        style = (
            f"text{{font-family:{_FONT};font-size:13px}}.mono{{font-family:{_MONO};font-size:12px}}"
            f".small{{font-size:11.5px}}.bold{{font-weight:600}}"
            f"{_rules(_LIGHT)}@media(prefers-color-scheme:dark){{{_rules(_DARK)}}}"
        )
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{style}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" class="line"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" rx="10" class="ground"/>',
        ]

    def text(
        self, x: float, y: float, content: str, kind: str = "ink", anchor: str = "middle"
    ) -> None:
        """Write a line. `kind` may also name "mono", "small" and "bold"; y is the base line."""
        place = f'x="{_number(x)}" y="{_number(y)}"'
        self._parts.append(
            f'<text {place} class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'
        )

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str = "plain",
        *,
        stroke: bool = True,
        radius: float = 5,
        opacity: float = 1,
        dashed: bool = False,
    ) -> None:
        """Draw a box."""
        style = f'class="{kind}{" stroke" if stroke else ""}"'
        style += f' fill-opacity="{_number(opacity)}"' if opacity != 1 else ""
        style += ' stroke-dasharray="4 3"' if dashed else ""
        place = f'x="{_number(x)}" y="{_number(y)}"'
        size = f'width="{_number(width)}" height="{_number(height)}"'
        self._parts.append(f'<rect {place} {size} rx="{_number(radius)}" {style}/>')

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        label: str,
        kind: str = "plain",
        *,
        style: str = "ink",
    ) -> None:
        """Draw a box with a label in its middle."""
        self.rect(x, y, width, height, kind)
        self.text(x + width / 2, y + height / 2 + 4.5, label, style)

    def line(
        self,
        points: list[tuple[float, float]],
        *,
        tip: bool = False,
        dashed: bool = False,
        accent: bool = False,
    ) -> None:
        """Draw a line through points, with an arrow head at its end if `tip`."""
        path = " ".join(f"{_number(x)} {_number(y)}" for x, y in points)
        more = ' marker-end="url(#tip)"' if tip else ""
        more += ' stroke-dasharray="4 3"' if dashed else ""
        kind = "accent" if accent else "stroke"
        width = "2" if accent else "1.3"
        self._parts.append(
            f'<path d="M{path}" fill="none" class="{kind}" stroke-width="{width}"{more}/>'
        )

    def circle(self, x: float, y: float, radius: float, kind: str, *, stroke: bool = False) -> None:
        """Draw a circle."""
        style = f'class="{kind}{" stroke" if stroke else ""}"'
        self._parts.append(
            f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}" {style}/>'
        )

    def svg(self) -> str:
        """Return the file."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def _number(value: float) -> str:
    """Return a number with at most one decimal, so that the file does not depend on rounding."""
    return f"{round(value, 1):g}"
