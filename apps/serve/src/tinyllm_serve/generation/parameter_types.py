"""The JSON types that a function's schema allows for a parameter, and values of these types."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Schema: TypeAlias = Mapping[str, object]

MAX_STEPS = 1 << 16
"""The most steps for the schemas of a request, or for the parameters of all its answers.

Each is a reference, an alternative, a value that a schema lists, or `STEP` characters. They take
0.4 s at most.
"""

STEP = 32
"""The characters of a reference or a rule that count as a step."""

# Keywords that restrict a value. All others only describe it.
_KEYWORDS = frozenset(
    {"type", "enum", "const", "pattern", "format", "minLength", "maxLength", "not", "if"}
    | {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
    | {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"$ref", "allOf", "anyOf", "oneOf"}
)
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}

# Keywords whose items are read once for each alternative beside them.
_LISTS = ("enum", "type", "allOf")


@dataclass(frozen=True)
class ParameterTypes:
    """The JSON types that a parameter may have, and the values that its schema lists.

    Attributes:
        types: all types; empty if the schema does not tell.
        unlisted: the types that may also have other values than the listed ones.
        listed: the keys of the listed values. Types of lists and objects are unlisted instead.
    """

    types: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    listed: frozenset[Hashable] = frozenset()


def parameter_types(schema: Schema, name: str, steps: "Steps") -> ParameterTypes:
    """Return the types and the listed values of a parameter.

    Args:
        schema: the schema of the arguments of a function.
        name: the name of the parameter.
        steps: the steps that are left. The result is empty if they do not suffice.
    """
    try:
        arguments = arguments_of(schema, steps)
        properties = arguments.get("properties")
        own = properties.get(name) if isinstance(properties, Mapping) else None
        own = arguments.get("additionalProperties") if own is None else own
        found = alternatives(own, schema, steps) if isinstance(own, Mapping) else []
    except TooManyStepsError:
        return ParameterTypes()
    unlisted, listed = set[str](), set[Hashable]()
    for one in found:
        values = allowed_values(one)
        if values is None:
            unlisted |= _own_types(one)
            continue
        listed |= {_scalar_key(value) for value in values if not isinstance(value, list | dict)}
        unlisted |= {_type_of(value) for value in values if isinstance(value, list | dict)}
    return ParameterTypes(types_of(found), frozenset(unlisted), frozenset(listed))


class FunctionSchemas:
    """The schemas of the arguments of functions, and the types of their parameters.

    The answers of a request share one, so that the types of a parameter are found once for all.
    """

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        """Store the schema of each function by name."""
        self.schemas = schemas
        self._types = dict[tuple[str, str], ParameterTypes]()
        self._steps = Steps()

    def parameter_types(self, function: str, name: str) -> ParameterTypes:
        """Return the types of a parameter of a function."""
        key = (function, name)
        if key not in self._types:
            self._types[key] = parameter_types(self.schemas[function], name, self._steps)
        return self._types[key]


class TooManyStepsError(ValueError):
    """The schemas of a request need more than `MAX_STEPS`."""


class Steps:
    """The steps that are left for the schemas of a request, or the parameters of its answers."""

    def __init__(self) -> None:
        """Allow `MAX_STEPS`."""
        self._left = MAX_STEPS

    def take(self, count: int = 1) -> None:
        """Take some steps; raises TooManyStepsError if fewer are left."""
        self._left -= count
        if self._left < 0:
            raise TooManyStepsError(
                f"expected at most {MAX_STEPS:,} references, alternatives, listed values and pieces"
                f" of {STEP} characters"
            )


def arguments_of(schema: Schema, steps: Steps) -> Schema:
    """Return the schema of an object, which may be behind references."""
    found = alternatives(schema, schema, steps)
    return found[0] if len(found) == 1 else schema


def types_of(found: Sequence[Schema]) -> frozenset[str]:
    """Return the JSON types of alternatives; empty if they do not tell."""
    return frozenset[str]().union(*map(_own_types, found))


def alternatives(schema: Schema, root: Schema, steps: Steps) -> list[Schema]:
    """Return the schemas that a value may conform to, without references and alternatives.

    Keywords that only describe a value are left out. `const` becomes an `enum` of one value. Each
    reference is followed once, and once more for other keywords beside it, so that a schema that
    refers to itself ends. A reference that leads nowhere stays as it is. Alternatives without a
    value that conforms are left out, if their `type` or `enum` shows it.

    Args:
        schema: the schema of the value.
        root: the schema that references such as "#/$defs/City" refer to.
        steps: the steps that are left.

    Raises:
        TooManyStepsError: if too few steps are left.
    """
    found, followed = list[Schema](), set[tuple[str, frozenset[int]]]()
    # Each with the keywords beside it, and the identities of the schemas that have these.
    waiting: list[tuple[Schema, frozenset[int], Schema]] = [({}, frozenset(), schema)]
    while waiting:
        beside, sources, current = waiting.pop()
        words = {word: current[word] for word in _KEYWORDS if word in current}
        own = _both(beside, words, steps)
        if "const" in own:
            own = _both(own, {"enum": [own.pop("const")]}, steps)
        lists = [each for each in map(own.get, _LISTS) if isinstance(each, list)]
        steps.take(1 + len(sources) + sum(map(len, lists)))
        if own.get("type") == [] or own.get("enum") == []:
            continue
        if len(words) > 1:
            sources |= {id(current)}
        match own:
            case {"allOf": [Mapping() as only], **rest} if own["allOf"] is current.get("allOf"):
                waiting.append((rest, sources, only))
            case {"$ref": str(reference), **rest} if isinstance(
                target := _target(reference, root, steps), Mapping
            ):
                if (reference, sources) not in followed:
                    followed.add((reference, sources))
                    waiting.append((rest, sources, target))
            case {"anyOf": [*each], **rest} | {"oneOf": [*each], **rest} if each:
                steps.take(len(each))
                schemas = [one for one in reversed(each) if isinstance(one, Mapping)]
                waiting += [(rest, sources, one) for one in schemas]
            case _:
                found.append(own)
    return found


def _both(first: Schema, second: Schema, steps: Steps) -> dict[str, object]:
    """Return the keywords of two schemas that both apply to a value.

    The types and the values of `enum` are those that both schemas have. Other keywords that both
    have are those of the second, and those of the first are in `allOf`.
    """
    both, apart = {**first, **second}, dict[str, object]()
    for word in first.keys() & second.keys():
        one, other = first[word], second[word]
        if one is other or (isinstance(one, str) and one == other):
            continue
        match word, one, other:
            case "type", str() | list(), str() | list():
                both["type"] = _common_types(first, second, steps)
            case "enum", [*ones], [*others]:
                keys = {_key(value, steps) for value in others}
                both["enum"] = [value for value in ones if _key(value, steps) in keys]
            case "allOf", [*ones], [*others]:
                both["allOf"] = [*ones, *others]
            case _:
                apart[word] = one
    if apart:
        of_all = both.get("allOf")
        both["allOf"] = [*of_all, apart] if isinstance(of_all, list) else [apart]
    return both


def _common_types(first: Schema, second: Schema, steps: Steps) -> list[str]:
    """Return the types that the `type` of both schemas allows."""
    one, other = _declared_types(first) or frozenset(), _declared_types(second) or frozenset()
    steps.take(len(one) + len(other))
    common = {kind for kind in one if _is_one_of(kind, other)}
    return sorted(common | {kind for kind in other if _is_one_of(kind, one)})


def _key(value: object, steps: Steps) -> Hashable:
    """Return a key that is equal for equal values of JSON."""
    steps.take()
    if isinstance(value, list | dict):
        text = json.dumps(value, sort_keys=True)
        steps.take(len(text) // STEP)
        return text
    return _scalar_key(value)


def _scalar_key(value: object) -> Hashable:
    """Return the key of a value that is no list and no object."""
    return isinstance(value, bool), value  # 1 == True in Python


def _target(reference: str, root: Schema, steps: Steps) -> object:
    """Return the part of a schema that a reference leads to, or None."""
    steps.take(len(reference) // STEP)
    target: object = root if reference.startswith("#/") else None
    for key in reference.removeprefix("#/").split("/"):
        if not isinstance(target, Mapping):
            return None
        target = target.get(key)
    return target


def _own_types(schema: Schema) -> frozenset[str]:
    """Return the types that the keywords of a schema without alternatives allow."""
    declared = _declared_types(schema)
    return frozenset(map(_type_of, allowed_values(schema) or [])) if declared is None else declared


def _declared_types(schema: Schema) -> frozenset[str] | None:
    """Return the types of `type`; None if the schema has no `type`."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    return None


def allowed_values(schema: Schema) -> list[object] | None:
    """Return the values that the `enum` and `type` of an alternative allow; None without `enum`."""
    values, types = schema.get("enum"), _declared_types(schema)
    if not isinstance(values, list):
        return None
    return values if types is None else [v for v in values if _is_one_of(_type_of(v), types)]


def _type_of(value: object) -> str:
    """Return the JSON type of a value."""
    return _TYPES.get(type(value), "array" if isinstance(value, list) else "object")


def _is_one_of(kind: str, types: frozenset[str]) -> bool:
    """Return True if a JSON type is one of some types, or an integer among numbers."""
    return kind in types or (kind == "integer" and "number" in types)


def value_of(text: str, allowed: ParameterTypes) -> str:
    """Return a written value as JSON: as one of the types if it is one, else as a string.

    A text is a string too if the schema lists it as a string, and not as another type. It is also a
    string if any string is allowed, and the other type has listed values without it.
    """
    written = text.strip()
    if written.lower() in ("true", "false") and "boolean" in allowed.types:
        written = written.lower()  # models also write True, as in Python
    if written.lower() in ("null", "none") and "null" in allowed.types:
        written = "null"
    try:
        value: object = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text)
    return written if _is_typed(value, text, allowed) else json.dumps(text)


def _is_typed(value: object, text: str, allowed: ParameterTypes) -> bool:
    """Return True if a text stands for the value that it is as JSON, False if for a string."""
    kind = _type_of(value)
    if not _is_one_of(kind, allowed.types):
        return False
    if not isinstance(value, list | dict) and _scalar_key(value) in allowed.listed:
        return True
    if _scalar_key(text) in allowed.listed:
        return False
    return _is_one_of(kind, allowed.unlisted) or "string" not in allowed.unlisted


def _refuse(name: str) -> None:
    """Refuse NaN and Infinity, which are no JSON."""
    raise ValueError(name)
