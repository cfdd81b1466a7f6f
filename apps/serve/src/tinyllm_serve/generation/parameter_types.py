"""The JSON types that a function's schema allows for a parameter, and values of these types."""

import json
from collections.abc import Mapping
from typing import TypeAlias

Schema: TypeAlias = Mapping[str, object]

_MAX_REFERENCES = 16
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def parameter_types(schema: Schema, name: str) -> frozenset[str]:
    """Return the JSON types that a parameter may have; empty if the schema does not tell.

    Args:
        schema: the schema of the arguments of a function.
        name: the name of the parameter.
    """
    properties = schema.get("properties")
    own = properties.get(name) if isinstance(properties, Mapping) else None
    return types_of(own, schema) if isinstance(own, Mapping) else frozenset()


def types_of(schema: Schema, root: Schema, depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows; empty if it does not tell.

    Args:
        schema: the schema.
        root: the schema that references such as "#/$defs/City" refer to.
        depth: the number of references and alternatives around the schema.
    """
    if depth > _MAX_REFERENCES:
        return frozenset()
    kind, reference = schema.get("type"), schema.get("$ref")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(
            _TYPES.get(type(value), "array" if isinstance(value, list) else "object")
            for value in values
        )
    if isinstance(reference, str) and reference.startswith("#/"):
        target: object = root
        for key in reference.removeprefix("#/").split("/"):
            target = target.get(key) if isinstance(target, Mapping) else None
        return types_of(target, root, depth + 1) if isinstance(target, Mapping) else frozenset()
    found: frozenset[str] = frozenset()
    for word in ("anyOf", "oneOf"):
        alternatives = schema.get(word)
        for each in alternatives if isinstance(alternatives, list) else []:
            found |= types_of(each, root, depth + 1) if isinstance(each, Mapping) else frozenset()
    return found


def value_of(text: str, types: frozenset[str]) -> str:
    """Return a written value as JSON: as one of the types if it is one, else as a string."""
    written = text.strip()
    if written.lower() in ("true", "false") and "boolean" in types:
        return written.lower()  # models also write True, as in Python
    if written.lower() in ("null", "none") and "null" in types:
        return "null"
    try:
        value: object = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text)
    kind = _TYPES.get(type(value), "array" if isinstance(value, list) else "object")
    if kind in types or (kind == "integer" and "number" in types):
        return written
    return json.dumps(text)


def _refuse(name: str) -> None:
    """Refuse NaN and Infinity, which are no JSON."""
    raise ValueError(name)
