"""Griffe extension of the API pages: shapes keep their quotes, as in the source.

Griffe reads a string of an annotation as a type. `Float[mx.array, "B L"]` is no expression and
stays a string, but `Float[mx.array, "O"]` would lose its quotes. zensical.toml names this file.
"""

from griffe import Attribute, Expr, ExprSubscript, ExprTuple, Extension, Function


class QuotedShapes(Extension):  # type: ignore[misc] # only the site's environment has griffe
    """Quotes the shapes of jaxtyping in parameters, results and attributes."""

    def on_function(self, *, func: Function, **_: object) -> None:
        """Quote the shapes of a signature."""
        for annotation in (*(parameter.annotation for parameter in func.parameters), func.returns):
            _quote(annotation)

    def on_attribute(self, *, attr: Attribute, **_: object) -> None:
        """Quote the shapes of an attribute, which is a parameter of a dataclass."""
        _quote(attr.annotation)


def _quote(annotation: str | Expr | None) -> None:
    """Quote each shape in an annotation."""
    if not isinstance(annotation, Expr):
        return
    if isinstance(annotation, ExprSubscript) and isinstance(annotation.slice, ExprTuple):
        elements = annotation.slice.elements
        shape = str(elements[-1])
        if annotation.canonical_path.startswith("jaxtyping.") and shape[0] not in "'\"":
            elements[-1] = repr(shape.replace(" ", ""))  # Griffe writes "R+1" as R + 1
    for part in annotation.iterate(flat=False):
        if part is not annotation:  # a name yields itself
            _quote(part)
