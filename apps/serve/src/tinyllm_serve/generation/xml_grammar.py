"""Grammar rules of function calls in Qwen3.5's XML format."""

import json
from collections.abc import Mapping, Sequence

from tinyllm_serve.generation.parameter_types import Schema, types_of
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
_ANY = "any_text"


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
    properties = schema.get("properties")
    listed = schema.get("required")
    required = listed if isinstance(listed, list) else []
    parts, rules = [json.dumps(f"{FUNCTION_OPEN}{function.name}>\n")], []
    for index, (key, value) in enumerate(
        properties.items() if isinstance(properties, Mapping) else ()
    ):
        own = value if isinstance(value, Mapping) else {}
        rule = f"{name}_{index}"
        opening = json.dumps(f"{PARAMETER_OPEN}{key}>\n")
        rules.append(f"{rule}: {opening} {_value(f'{function.name}.{key}', own, schema)}")
        parts.append(rule if key in required else f"{rule}?")
    if not properties and schema.get("additionalProperties") is not False:
        rules.append(f'{name}_any: "{PARAMETER_OPEN}" /[^<>\\n]+/ ">\\n" {_ANY}')
        parts.append(f"{name}_any*")
    return [f"{name}: {' '.join(parts)}", *rules]


def _value(parameter: str, schema: Schema, root: Schema) -> str:
    """Return the expression of a value with its closing tag."""
    closing = json.dumps(f"\n{PARAMETER_CLOSE}\n")
    types = types_of(schema, root)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values and types <= {"string"}:
        return f"({' | '.join(json.dumps(value) for value in values)}) {closing}"
    if not types or "string" in types:
        unknown = sorted(schema.keys() - _TEXT_KEYWORDS - {"anyOf", "oneOf", "$ref"})
        if unknown:
            raise ApiError(
                400,
                f"tools: {parameter}: {unknown[0]}: expected a string with type, enum or const, "
                "since this model writes strings without quotes: remove it, or make the tool not "
                "strict",
                param="tools",
            )
        return _ANY
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return f"%json {json.dumps({**shared, **schema})} {closing}"
