"""Functions, tags and types that chat templates of Hugging Face can use beside jinja2's own."""

from collections.abc import Callable, Mapping
from datetime import datetime

from jinja2 import Environment, nodes
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace

_MAX_DATE_LAYOUT = 1000  # characters; the C library expands a character to up to 256


class RefusalError(JinjaError):
    """The error of `raise_exception` in a template."""


class GenerationTag(Extension):
    """The tag `{% generation %}`, which marks text of the assistant. Its body has its own scope."""

    def __init__(self, environment: Environment) -> None:
        """Register the tag with jinja2."""
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the body up to `{% endgeneration %}`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class SafeNamespace(Namespace):
    """A namespace that refuses names with a leading "_".

    Python looks up such names itself, without asking the sandbox. The text of a namespace does not
    show its contents, because they can grow after a list with the namespace was charged.
    """

    def __init__(self, /, *args: Mapping[str, object], **attributes: object) -> None:
        """Set the initial values, given as for `dict`."""
        super().__init__()
        for name, value in dict(*args, **attributes).items():
            Namespace.__setitem__(self, _public(name), value)

    def __setitem__(self, name: str, value: object) -> None:
        """Set `name`, for `{% set namespace.name = value %}`."""
        super().__setitem__(_public(name), value)

    def __repr__(self) -> str:
        """Return a text that does not depend on the contents."""
        return "<Namespace>"


def _public(name: str) -> str:
    if name.startswith("_"):
        raise SecurityError(f"it stores {name[:80]!r} in a namespace")
    return name


def _raise_exception(message: str) -> None:
    raise RefusalError(message)


def _strftime_now(layout: str) -> str:
    if len(layout) > _MAX_DATE_LAYOUT:
        raise SecurityError("it asks for a date of thousands of characters")
    return datetime.now().strftime(layout)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}
"""The functions that a template can call, by name."""
