"""The JSON types that a function's schema allows for a parameter, and values of these types."""

import json
from collections.abc import Mapping
from typing import TypeAlias

Schema: TypeAlias = Mapping[str, object]

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def parameter_types(schema: Schema, name: str) -> frozenset[str]:
    """Return the JSON types that a parameter may have; empty if the schema does not tell.

    Args:
        schema: the schema of the arguments of a function.
        name: the name of the parameter.
    """
    arguments = arguments_of(schema)
    properties = arguments.get("properties")
    own = properties.get(name) if isinstance(properties, Mapping) else None
    own = arguments.get("additionalProperties") if own is None else own
    return types_of(own, schema) if isinstance(own, Mapping) else frozenset()


def arguments_of(schema: Schema) -> Schema:
    """Return the schema of an object, which may be behind references."""
    found = alternatives(schema, schema)
    return found[0] if len(found) == 1 else schema


def types_of(schema: Schema, root: Schema) -> frozenset[str]:
    """Return the JSON types that a schema allows; empty if it does not tell.

    Args:
        schema: the schema.
        root: the schema that references such as "#/$defs/City" refer to.
    """
    return frozenset[str]().union(*map(_own_types, alternatives(schema, root)))


def alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """Return the schemas that a value may conform to, without references and alternatives.

    Each reference is followed once. So a schema that refers to itself ends, and schemas that refer
    to each other many times take linear time. A reference that leads nowhere stays as it is.
    """
    found, waiting, followed = list[Schema](), [schema], set[str]()
    while waiting:
        match waiting.pop():
            case {"$ref": str(reference), **own} if isinstance(
                target := _target(reference, root), Mapping
            ):
                if reference not in followed:
                    followed.add(reference)
                    waiting.append({**target, **own})
            case {"allOf": [Mapping() as only], **own}:
                waiting.append({**only, **own})
            case {"anyOf": [*each], **own} | {"oneOf": [*each], **own} if each:
                waiting += [{**own, **one} for one in reversed(each) if isinstance(one, Mapping)]
            case other:
                found.append(other)
    return found


def _target(reference: str, root: Schema) -> object:
    """Return the part of a schema that a reference leads to, or None."""
    target: object = root if reference.startswith("#/") else None
    for key in reference.removeprefix("#/").split("/"):
        target = target.get(key) if isinstance(target, Mapping) else None
    return target


def _own_types(schema: Schema) -> frozenset[str]:
    """Return the types that the keywords of a schema without alternatives allow."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    values = allowed_values(schema) or []
    return frozenset(
        _TYPES.get(type(value), "array" if isinstance(value, list) else "object")
        for value in values
    )


def allowed_values(schema: Schema) -> list[object] | None:
    """Return the values of `const` or `enum`; None if the schema has neither."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


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
