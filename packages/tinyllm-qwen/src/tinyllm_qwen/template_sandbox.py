"""SandboxedTemplate: a chat template compiled in jinja2's sandbox, its work metered.

This module imports jinja2, which takes 0.1 s: import it where a template is rendered.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from threading import Lock
from typing import TypeVar

from jinja2 import Environment, Template, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from tinyllm_qwen.errors import CheckpointError, TemplateError

# What one render may do: three seconds of work, and 256 M characters in all of its values
# together. A conversation of a thousand turns and a megabyte takes a twentieth of that.
STEPS = 1 << 19
CHARACTERS_PER_STEP = 512
MAX_INTEGER_BITS = 4096

T = TypeVar("T")


class SandboxedTemplate:
    """A compiled chat template, rendered as Hugging Face renders it.

    Blocks are trimmed, `break`, `continue` and `{% generation %}` are known, `tojson` does not
    escape HTML, and `raise_exception` and `strftime_now` are defined. Python's internals are out of
    reach, values cannot be changed, and loops, calls and the sizes of values are metered, so that a
    template that never ends comes to an error. (It is no defense against one that asks for
    gigabytes in a single filter: templates are to be trusted that far.)
    """

    def __init__(self, source: str, origin: str) -> None:
        """Compile a template.

        Args:
            source: the text of the template.
            origin: the file that it comes from, for errors.

        Raises:
            CheckpointError: if the template is not valid jinja2.
        """
        self._origin = origin
        self._environment = _Sandbox()
        self._lock = Lock()  # the environment counts the steps of one render at a time
        try:
            tree = self._environment.parse(source)
            _Metering(self._environment).visit(tree)
            code = self._environment.compile(tree, filename=origin)
        except TemplateSyntaxError as error:
            raise CheckpointError(
                f"{origin}: the chat template is broken at line {error.lineno}: {error.message}"
            ) from None
        except (RecursionError, MemoryError, SyntaxError):
            raise CheckpointError(f"{origin}: the chat template is nested too deeply") from None
        namespace = self._environment.make_globals(None)
        self._template = Template.from_code(self._environment, code, namespace)

    def render(self, variables: Mapping[str, object]) -> str:
        """The text that the template makes of `variables`.

        Raises:
            TemplateError: if the template refuses the variables or fails on them.
            CheckpointError: if it reaches for Python's internals or does not come to an end.
        """
        pieces: list[str] = []
        with self._lock:
            self._environment.steps_left = STEPS
            try:
                for piece in self._template.generate(variables):
                    pieces.append(self._environment.spend_on(piece))
            except _RefusalError as error:
                raise TemplateError(str(error)) from None
            except (SecurityError, RecursionError, MemoryError) as error:
                raise CheckpointError(
                    f"{self._origin}: the chat template was stopped ({error}): do not trust this"
                    " checkpoint, or replace its template"
                ) from None
            # A template is a program: on data that it did not expect it can raise anything.
            except Exception as error:
                raise TemplateError(
                    f"{self._origin}: the chat template fails on these messages:"
                    f" {type(error).__name__}: {error}"
                ) from error
        return "".join(pieces)


class _RefusalError(JinjaError):
    """What `raise_exception` in a template raises."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment for chat templates, with a count of the steps left."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.steps_left = 0
        self.filters |= {
            "tojson": _tojson,
            "metered_items": _metered_items,
            "metered_value": _metered_value,
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": _SafeNamespace,
        }

    def spend(self, steps: int) -> None:
        """Count `steps`, and stop the template when it has used up what a render may do."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise SecurityError("it does not come to an end")

    def spend_on(self, value: T) -> T:
        """Count a step for `value`, and more for a large one."""
        steps = 1
        if isinstance(value, str):
            steps += len(value) // CHARACTERS_PER_STEP
        elif isinstance(value, range | list | tuple):
            steps += len(value)
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise SecurityError("it computes huge numbers")
        self.spend(steps)
        return value

    def unsafe_undefined(self, obj: object, attribute: str) -> Undefined:
        """What an attribute that the sandbox withholds is: an error if it is Python's own."""
        if attribute.startswith("_"):
            raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        """Call a function, a macro or, in a recursive loop, the loop; count the work."""
        if isinstance(obj, LoopContext) and args and isinstance(args[0], Iterable):
            args = (_metered_items(context, args[0]), *args[1:])
        return self.spend_on(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Compute `left operator right`, having counted what a product or a power comes to."""
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    self.spend(len(value) * max(times, 0) // CHARACTERS_PER_STEP)
        if (
            operator == "**"
            and isinstance(left, int)
            and isinstance(right, int)
            and left.bit_length() * right > MAX_INTEGER_BITS
        ):
            raise SecurityError("it computes huge numbers")
        return self.spend_on(super().call_binop(context, operator, left, right))


class _Metering(NodeTransformer):
    """Puts the meter where the sandbox has no hook: the items of a loop and the text of a `~ b`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def visit(self, node: nodes.Node, *args: object, **kwargs: object) -> nodes.Node:
        """Rewrite a node after those below it."""
        node = self.generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.For):
            node.iter = self._filtered(node.iter, "metered_items")
        elif isinstance(node, nodes.Concat):
            return self._filtered(node, "metered_value")
        return node

    def _filtered(self, node: nodes.Node, name: str) -> nodes.Node:
        filtered = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        return filtered.set_environment(self._environment)


@pass_context
def _metered_items(context: Context, items: Iterable[T]) -> Iterator[T]:
    for item in items:
        _sandbox(context).spend(1)
        yield item


@pass_context
def _metered_value(context: Context, value: T) -> T:
    return _sandbox(context).spend_on(value)


def _sandbox(context: Context) -> _Sandbox:
    environment = context.environment
    assert isinstance(environment, _Sandbox)
    return environment


class _GenerationTag(Extension):
    """`{% generation %}`, which marks what the assistant says: for us its body, in a scope."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the body up to `{% endgeneration %}`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _SafeNamespace(Namespace):
    """A namespace without names that Python looks up behind the sandbox's back."""

    def __init__(self, /, *args: Mapping[str, object], **attributes: object) -> None:
        super().__init__()
        for name, value in dict(*args, **attributes).items():
            Namespace.__setitem__(self, _public(name), value)

    def __setitem__(self, name: str, value: object) -> None:
        super().__setitem__(_public(name), value)


def _public(name: str) -> str:
    if name.startswith("_"):
        raise SecurityError(f"it stores {name!r} in a namespace")
    return name


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise _RefusalError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
