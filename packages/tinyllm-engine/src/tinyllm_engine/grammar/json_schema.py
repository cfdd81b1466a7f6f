"""Conversion of JSON schemas to the keywords that llguidance implements."""

from collections.abc import Mapping

FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
"""The formats of strings that llguidance enforces. It refuses schemas with any other one."""

MAX_NAMES = 1_024
"""The most names of properties that the `propertyNames` of a schema list together. Many of them can
refer to one list."""

_SCHEMAS = ("additionalItems", "additionalProperties", "items", "propertyNames")
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPPINGS = ("$defs", "definitions", "patternProperties", "properties")
"""Keywords whose value is a schema, a list of schemas, and schemas by name."""

_ANNOTATIONS = frozenset({"$comment", "default", "deprecated", "description", "examples", "title"})


def enforceable_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """Return a schema of the same values in keywords that llguidance implements, if it has them.

    Keywords that restrict nothing are left out: `uniqueItems: false`, a `propertyNames` that allows
    all names, and formats other than `FORMATS`, which are annotations in JSON Schema 2020-12. A
    `propertyNames` that lists names, or has a pattern, becomes an entry of `allOf`. All else is
    unchanged, also what llguidance refuses.

    Raises:
        ValueError: if `propertyNames` list more than `MAX_NAMES` names.
    """
    return _Conversion(schema).schema(schema)


class _Conversion:
    """The conversion of one schema."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._num_names = 0

    def schema(self, schema: Mapping[str, object]) -> dict[str, object]:
        """Convert a schema."""
        converted = dict(schema)
        for keyword in _SCHEMAS:
            if keyword in schema:
                converted[keyword] = self._any(schema[keyword])
        for keyword in _LISTS:
            if isinstance(listed := schema.get(keyword), list):
                converted[keyword] = [self._any(each) for each in listed]
        for keyword in _MAPPINGS:
            if isinstance(named := schema.get(keyword), dict):
                converted[keyword] = {name: self._any(each) for name, each in named.items()}
        if schema.get("uniqueItems") is False:
            del converted["uniqueItems"]
        if isinstance(form := schema.get("format"), str) and form not in FORMATS:
            del converted["format"]
        all_of = converted.get("allOf", [])
        if "propertyNames" in schema and isinstance(all_of, list):
            restriction = self._restriction(converted["propertyNames"])
            if restriction is not None:
                del converted["propertyNames"]
            if restriction:
                converted["allOf"] = [*all_of, restriction]
        return converted

    def _any(self, value: object) -> object:
        """Convert a schema. A value that is no object, such as True, is returned unchanged."""
        return self.schema(value) if isinstance(value, dict) else value

    def _restriction(self, names: object) -> dict[str, object] | None:
        """Return a schema of the objects whose names conform to a schema.

        The result is empty if all names conform, and None if other keywords cannot express it.
        """
        followed = set[str]()
        while isinstance(names, dict):
            rules = {key: value for key, value in names.items() if key not in _ANNOTATIONS}
            reference = str(rules.get("$ref"))
            if len(rules) != 1 or "$ref" not in rules or reference in followed:
                break
            followed.add(reference)
            names = self._definition(reference)  # an Enum of pydantic
        else:
            return {} if names is True else None
        if rules.get("type") == "string":
            del rules["type"]
        if isinstance(form := rules.get("format"), str) and form not in FORMATS:
            del rules["format"]
        match rules:
            case {"enum": list(listed)} if len(rules) == 1:
                return self._only(listed)
            case {"const": name} if len(rules) == 1:
                return self._only([name])
            case {"pattern": str(pattern)} if len(rules) == 1:
                return {"patternProperties": {pattern: True}, "additionalProperties": False}
        return None if rules else {}

    def _only(self, names: list[object]) -> dict[str, object]:
        """Return a schema of the objects with properties of these names alone."""
        self._num_names += len(names)
        if self._num_names > MAX_NAMES:
            raise ValueError(
                f"expected at most {MAX_NAMES:,} names in propertyNames, got more: use fewer"
            )
        properties = {name: True for name in names if isinstance(name, str)}
        return {"properties": properties, "additionalProperties": False}

    def _definition(self, reference: str) -> object:
        """Return the definition that a reference names, or None if there is none of this name."""
        for keyword in ("$defs", "definitions"):
            definitions, prefix = self._root.get(keyword), f"#/{keyword}/"
            if isinstance(definitions, dict) and reference.startswith(prefix):
                return definitions.get(reference.removeprefix(prefix))
        return None
