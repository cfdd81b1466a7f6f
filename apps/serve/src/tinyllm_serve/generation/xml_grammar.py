"""Grammar rules of function calls in Qwen3.5's XML format."""

import json
from collections.abc import Mapping, Sequence

from tinyllm_serve.generation.parameter_types import (
    Schema,
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
_TEXT_KEYWORDS = frozenset({"type", "enum", "const", "title", "description", "default", "examples"})
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
        ApiError: 400 if a schema has a keyword that cannot be enforced in this format.
    """
    names = [f"call_{index}" for index in range(len(functions))]
    closing = json.dumps(f"{FUNCTION_CLOSE}\n{CALL_CLOSE}")
    end_of_value = PARAMETER_CLOSE.replace("/", r"\/")
    rules = [
        rf'body: "\n" ({" | ".join(names)}) {closing}',
        rf"{_ANY}[lazy]: /(?s:.*)\n{end_of_value}\n/",
    ]
    for name, (function, schema) in zip(names, functions, strict=True):
        rules += _call(name, function, schema)
    return rules


def _call(name: str, function: Function, schema: Schema) -> list[str]:
    """Return the rules of the calls of a function."""
    arguments = arguments_of(schema)
    for keyword in sorted(arguments.keys() & _OBJECT_KEYWORDS):
        raise _refusal(f"{function.name}: {keyword}: expected parameters in properties")
    declared, listed = arguments.get("properties"), arguments.get("required")
    properties = declared if isinstance(declared, Mapping) else {}
    required = listed if isinstance(listed, list) else []
    if not set(map(str, required)) <= properties.keys():
        raise _refusal(f"{function.name}: required: expected names of properties")
    parts, rules = [json.dumps(f"{FUNCTION_OPEN}{function.name}>\n")], []
    for index, (key, value) in enumerate(properties.items()):
        if ">" in key or "\n" in key:
            raise _refusal(f"{function.name}: {key[:80]!r}: expected a name without '>'")
        own = value if isinstance(value, Mapping) else {}
        rule = f"{name}_{index}"
        opening = json.dumps(f"{PARAMETER_OPEN}{key}>\n")
        rules.append(f"{rule}: {opening} {_value(f'{function.name}.{key}', own, schema)}")
        parts.append(rule if key in required else f"{rule}?")
    other = arguments.get("additionalProperties")
    if not properties and other is not False:
        value = _value(function.name, other, schema) if isinstance(other, Mapping) else _ANY
        rules.append(f'{name}_any: "{PARAMETER_OPEN}" /[^<>\\n]+/ ">\\n" {value}')
        parts.append(f"{name}_any*")
    return [f"{name}: {' '.join(parts)}", *rules]


def _value(parameter: str, schema: Schema, root: Schema) -> str:
    """Return the expression of a value with its closing tag."""
    types = types_of(schema, root)
    if types and "string" not in types:
        return _json(schema, root)
    each = [_alternative(parameter, one, root) for one in alternatives(schema, root)]
    return f"({' | '.join(dict.fromkeys(each))})"


def _alternative(parameter: str, schema: Schema, root: Schema) -> str:
    """Return the expression of a value beside which the parameter may be a string."""
    types, values = types_of(schema, root), allowed_values(schema)
    if values:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        return f"({' | '.join(map(json.dumps, texts))}) {_CLOSING}"
    if types and "string" not in types:
        return _json(schema, root)
    for keyword in sorted(schema.keys() - _TEXT_KEYWORDS):
        raise _refusal(
            f"{parameter}: {keyword}: expected a string with type, enum or const, since this model "
            "writes strings without quotes"
        )
    return _ANY


def _json(schema: Schema, root: Schema) -> str:
    """Return the expression of a value that is written as JSON."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return f"%json {json.dumps({**shared, **schema})} {_CLOSING}"


def _refusal(problem: str) -> ApiError:
    message = f"tools: {problem}: change it, or make the tool not strict with tool_choice auto"
    return ApiError(400, message, param="tools")
