"""The jinja2 environment of Hugging Face for chat templates, with a meter of all operations."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinMethodType

from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from tinyllm_qwen.text.sandbox.costs import (
    FILTER_COSTS,
    METHOD_COSTS,
    WITHHELD_FILTERS,
    WITHHELD_METHODS,
    percent_cost,
    widths_in,
)
from tinyllm_qwen.text.sandbox.functions import FUNCTIONS, GenerationTag, SafeNamespace
from tinyllm_qwen.text.sandbox.meter import ITEM, MAX_INTEGER_BITS, TemplateMeter

Function = Callable[..., object]

# Filters that convert their value to text. A list is charged by the length of its text.
_TEXT_FILTERS = frozenset(
    {"capitalize", "center", "e", "escape", "forceescape", "format", "indent"}
)
_TEXT_FILTERS |= {"lower", "replace", "safe", "string", "title", "trim", "truncate", "upper"}
_TEXT_FILTERS |= {"urlencode", "wordcount"}


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The jinja2 environment of a template, with the names and operations allowed in templates.

    Attributes:
        meter: the meter of the render in progress.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        """Make the environment, in which every filter, function and operator is metered."""
        self.meter = TemplateMeter()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
            finalize=self.meter.spend_on_text,
        )
        self.globals |= FUNCTIONS | {"namespace": SafeNamespace}
        del self.globals["lipsum"]
        self.filters |= {"sum": self._sum, "tojson": self._tojson}
        self.filters = {
            name: self._metered(name, function)
            for name, function in self.filters.items()
            if name not in WITHHELD_FILTERS
        } | {
            "metered_items": self.meter.spend_on_items,
            "metered_text": self.meter.spend_on_text,
            "metered_value": self.meter.spend_on,
            "metered_view": self.meter.spend_on_view,
        }

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Return True if a template may read attribute `attr` of `obj`."""
        withheld = isinstance(obj, str | int) and attr in WITHHELD_METHODS
        return not withheld and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: object, attribute: str) -> Undefined:
        """Return "undefined" for a withheld attribute; raise if its name starts with "_"."""
        if attribute.startswith("_"):
            raise SecurityError(f"it reaches for {attribute[:80]!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """Return a metered `str.format` or `str.format_map`, or None for any other value."""
        if super().wrap_str_format(value) is None or not isinstance(value, BuiltinMethodType):
            return None
        layout, takes_mapping = str(value.__self__), value.__name__ == "format_map"

        def format_text(*args: object, **named: object) -> str:
            if takes_mapping and len(args) == 1 and isinstance(args[0], Mapping):
                return _MeteredFormatter(self).vformat(layout, (), args[0])
            return _MeteredFormatter(self).vformat(layout, args, named)

        return format_text

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        """Call a function, a method, a macro, or a recursive loop, and charge for the call."""
        if isinstance(obj, LoopContext) and args and isinstance(args[0], Iterable):
            args = (self.meter.spend_on_items(args[0]), *args[1:])
        if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str):
            if obj.__name__ == "join" and args and isinstance(args[0], Iterable):
                args = (list(args[0]), *args[1:])
            cost = METHOD_COSTS.get(obj.__name__)
            self.meter.spend(cost(obj.__self__, [*args, *kwargs.values()]) if cost else 0)
        # Charge for the arguments, because a macro can read all of them as one value, `varargs`.
        self.meter.spend_on((args, kwargs))
        return self.meter.spend_on(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Compute `left operator right`, after a charge for the largest possible result."""
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    entry = 1 if isinstance(value, str) else ITEM
                    self.meter.spend(len(value) * entry * max(times, 0))
        elif operator == "%" and isinstance(left, str):
            self.meter.spend_on_text(right)
            self.meter.spend(percent_cost(left, _terms(right)))
        elif (
            operator == "**"
            and isinstance(left, int)
            and isinstance(right, int)
            and left.bit_length() * right > MAX_INTEGER_BITS
        ):
            raise SecurityError("it computes huge numbers")
        return self.meter.spend_on(super().call_binop(context, operator, left, right))

    def _metered(self, name: str, function: Function) -> Function:
        """Return a filter that charges its cost before the call and its result after the call."""
        metered = functools.partial(self._filter, name, function)
        return functools.update_wrapper(metered, function)

    def _filter(self, name: str, function: Function, /, *args: object, **kwargs: object) -> object:
        """Call a filter, and charge for it."""
        # jinja2 passes a context before the value if the function has this attribute.
        index = 0 if getattr(function, "jinja_pass_arg", None) is None else 1
        before, value, rest = args[:index], args[index], args[index + 1 :]
        if name == "join" and isinstance(value, Iterable):
            value = [self.meter.spend_on_text(item) for item in value]
            separator = rest[0] if rest else kwargs.get("d", "")
            self.meter.spend(len(str(self.meter.spend_on_text(separator))) * len(value))
        elif name in _TEXT_FILTERS:
            self.meter.spend_on_text(value)
        cost = FILTER_COSTS.get(name)
        self.meter.spend(cost(value, [*rest, *kwargs.values()]) if cost else 0)
        return self.meter.spend_on(function(*before, value, *rest, **kwargs))

    def _sum(
        self, items: Iterable[object], attribute: str | int | None = None, start: object = 0
    ) -> object:
        """Sum `items`, with a charge for each addition, because a sum of lists is a new list."""
        get = None if attribute is None else make_attrgetter(self, attribute)
        for item in items:
            term = item if get is None else get(item)
            start = self.meter.spend_on(self.binop_table["+"](start, term))
        return start

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Encode a value as JSON like Hugging Face, without HTML escapes, charged by piece."""
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        pieces: list[str] = []
        if isinstance(indent, int):
            self.meter.spend(indent)
        for piece in encoder.iterencode(value):
            pieces.append(self.meter.spend_on_text(piece))
        return "".join(pieces)


def _terms(values: object) -> Sequence[object]:
    """Return the values on the right of a `%` operator as a sequence."""
    if isinstance(values, Mapping):
        return list(values.values())
    return values if isinstance(values, tuple) else [values]


class _MeteredFormatter(SandboxedFormatter):
    """`str.format` with a charge for each field."""

    def __init__(self, environment: TemplateEnvironment) -> None:
        super().__init__(environment)
        self._meter = environment.meter

    def format_field(self, value: object, format_spec: str) -> str:
        self._meter.spend_on_text(value)
        self._meter.spend(widths_in(format_spec))
        text = super().format_field(value, format_spec)
        assert isinstance(text, str)
        return self._meter.spend_on_text(text)

    def convert_field(self, value: object, conversion: str | None) -> object:
        self._meter.spend_on_text([value])
        converted: object = super().convert_field(value, conversion)
        return converted

    def get_value(
        self, key: int | str, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        self._meter.spend()
        found: object = super().get_value(key, args, kwargs)
        return found
