"""Grammar rules of function calls in Qwen3.5's XML format."""

import json
from collections.abc import Iterator, Mapping, Sequence

from tinyllm_serve.generation.parameter_types import (
    STEP,
    Schema,
    Steps,
    TooManyStepsError,
    allowed_values,
    alternatives,
    arguments_of,
    types_of,
)
from tinyllm_serve.generation.tool_calls import CALL_CLOSE
from tinyllm_serve.generation.xml_tool_calls import (
    FUNCTION_CLOSE,
    FUNCTION_OPEN,
    PARAMETER_CLOSE,
    PARAMETER_OPEN,
)
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.tools import Function

# Keywords for texts without quotes. Others, such as "pattern", would need JSON's quotes.
_TEXT_KEYWORDS = frozenset({"type", "enum", "const"})
# Keywords of arguments that the order of the parameters in the grammar cannot enforce.
_OBJECT_KEYWORDS = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "propertyNames"}
    | {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"}
)
_ANY = "any_text"
_CLOSING = json.dumps(f"\n{PARAMETER_CLOSE}\n")


def xml_bodies(functions: Sequence[tuple[Function, Schema]]) -> list[str]:
    """Return the rules of the text after the opening tag, for functions with their schemas.

    The rule `body` is one call with its closing tag. Parameters come in the order of the schema.

    Raises:
        ApiError: 400 if a schema has a keyword that cannot be enforced in this format, or if the
            schemas need more than `MAX_STEPS`, the characters of their rules included.
    """
    names = [f"call_{index}" for index in range(len(functions))]
    closing = json.dumps(f"{FUNCTION_CLOSE}\n{CALL_CLOSE}")
    end_of_value = PARAMETER_CLOSE.replace("/", r"\/")
    rules = [
        rf'body: "\n" ({" | ".join(names)}) {closing}',
        rf"{_ANY}[lazy]: /(?s:.*)\n{end_of_value}\n/",
    ]
    steps = Steps()
    try:
        for name, (function, schema) in zip(names, functions, strict=True):
            rules += _call(name, function, schema, steps)
    except TooManyStepsError as error:
        raise _refusal(str(error)) from None
    return rules


def _call(name: str, function: Function, schema: Schema, steps: Steps) -> Iterator[str]:
    """Yield the rules of the parameters of a function, then the rule of its calls."""
    arguments = arguments_of(schema, steps)
    for keyword in sorted(arguments.keys() & _OBJECT_KEYWORDS):
        was_converted = keyword == "allOf" and "propertyNames" in (function.parameters or {})
        given = "propertyNames" if was_converted else keyword
        raise _refusal(f"{function.name}: {given}: expected parameters in properties")
    declared, listed = arguments.get("properties"), arguments.get("required")
    properties = declared if isinstance(declared, Mapping) else {}
    required = set(map(str, listed)) if isinstance(listed, list) else set()
    if not required <= properties.keys():
        raise _refusal(f"{function.name}: required: expected names of properties")
    parts = [json.dumps(f"{FUNCTION_OPEN}{function.name}>\n")]
    for index, (key, value) in enumerate(properties.items()):
        if ">" in key or "\n" in key:
            raise _refusal(f"{function.name}: {key[:80]!r}: expected a name without '>'")
        own = value if isinstance(value, Mapping) else {}
        opening = json.dumps(f"{PARAMETER_OPEN}{key}>\n")
        yield f"{name}_{index}: {opening} {_value(f'{function.name}.{key}', own, schema, steps)}"
        parts.append(f"{name}_{index}" if key in required else f"{name}_{index}?")
    other = arguments.get("additionalProperties")
    if not properties and other is not False:
        own = other if isinstance(other, Mapping) else {}
        value = _value(function.name, own, schema, steps)
        yield f'{name}_any: "{PARAMETER_OPEN}" /[^<>\\n]+/ ">\\n" {value}'
        parts.append(f"{name}_any*")
    yield f"{name}: {' '.join(parts)}"


def _value(parameter: str, schema: Schema, root: Schema, steps: Steps) -> str:
    """Return the expression of a value with its closing tag."""
    found = alternatives(schema, root, steps)
    types = types_of(found)
    if types and "string" not in types:
        return _json(schema, root, steps)
    each = dict.fromkeys(
        _alternative(parameter, one, values, root, steps)
        for one in found
        if (values := allowed_values(one)) != []
    )
    if not each:
        raise _refusal(f"{parameter}: expected a schema that allows a value, got none")
    return f"({' | '.join(each)})"


def _alternative(
    parameter: str, schema: Schema, values: Sequence[object] | None, root: Schema, steps: Steps
) -> str:
    """Return the expression of a value, or of one of `values`, in a parameter with strings."""
    types = types_of([schema])
    if types and "string" not in types:
        return _json(schema, root, steps)
    for keyword in sorted(schema.keys() - _TEXT_KEYWORDS):
        raise _refusal(
            f"{parameter}: {keyword}: expected a string with type, enum or const, since this model "
            "writes strings without quotes"
        )
    if values is None:
        return _ANY
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    rule = f"({' | '.join(map(json.dumps, texts))}) {_CLOSING}"
    steps.take(len(rule) // STEP)
    return rule


def _json(schema: Schema, root: Schema, steps: Steps) -> str:
    """Return the expression of a value that is written as JSON."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    given = schema.get("x-guidance")
    options = {**(given if isinstance(given, Mapping) else {}), "coerce_one_of": True}
    rule = f"%json {json.dumps({**shared, **schema, 'x-guidance': options})} {_CLOSING}"
    steps.take(len(rule) // STEP)
    return rule


def _refusal(problem: str) -> ApiError:
    message = f"tools: {problem}: change it, or make the tool not strict with tool_choice auto"
    return ApiError(400, message, param="tools")
