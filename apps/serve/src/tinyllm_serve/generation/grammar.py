"""The grammar of an answer: its output format, its function calls, or either."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tinyllm_engine import Grammar, enforceable_schema

from tinyllm_serve.generation.parameter_types import Schema
from tinyllm_serve.generation.prompt import CallFormat, Prompt
from tinyllm_serve.generation.tool_calls import CALL_CLOSE, CALL_OPEN
from tinyllm_serve.generation.xml_grammar import xml_bodies
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.protocol.output_format import (
    JsonObjectFormat,
    JsonSchemaFormat,
    StructuredOutputs,
)
from tinyllm_serve.protocol.sampling import SamplingFields
from tinyllm_serve.protocol.tools import Function

# Chat templates write the calls of a conversation as json.dumps does, on one line.
_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


def output_grammar(request: SamplingFields) -> Grammar | None:
    """Return the grammar of a request's output format, or None if any text is allowed."""
    if request.structured_outputs is not None:
        return _structured_grammar(request.structured_outputs)
    match request.response_format:
        case JsonObjectFormat():
            return Grammar.json_object()
        case JsonSchemaFormat(json_schema=named):
            return replace(Grammar.json_schema(named.json_schema), name="response_format")
    return None


def _structured_grammar(outputs: StructuredOutputs) -> Grammar:
    match outputs:
        case StructuredOutputs(json_schema=dict(schema)):
            grammar, name = Grammar.json_schema(schema), "json"
        case StructuredOutputs(regex=str(pattern)):
            grammar, name = Grammar.regex(pattern), "regex"
        case StructuredOutputs(choice=list(texts)):
            grammar, name = Grammar.choice(texts), "choice"
        case StructuredOutputs(grammar=str(rules)):
            grammar, name = Grammar.lark(rules), "grammar"
        case _:
            grammar, name = Grammar.json_object(), "json_object"
    return replace(grammar, name=f"structured_outputs.{name}")


def chat_grammar(request: ChatRequest, prompt: Prompt) -> Grammar | None:
    """Return the grammar of an answer after its reasoning, or None if any text is allowed."""
    # The format is that of text, which an answer of calls does not have.
    grammar = None if request.must_call else output_grammar(request)
    own = set(map(id, request.callable_tools))
    functions = {
        name: tool.function
        for name, tool in zip(request.schema_names, request.tools or [], strict=True)
        if id(tool) in own
    }
    if functions and (request.must_call or grammar is not None):
        several = request.parallel_tool_calls is not False
        calls = call_grammar(
            [*functions.values()],
            several=several,
            call_format=prompt.call_format,
            fields=[*functions],
        )
        if grammar is None:
            grammar = calls
        else:
            grammar = replace(Grammar.union(grammar, calls), name=grammar.name)
    elif request.has_strict_tools:
        grammar = text_or_calls([*functions.values()], prompt.call_format, [*functions])
    return grammar and replace(grammar, after=prompt.reasoning_close, opening=prompt.reasoning_open)


def call_grammar(
    functions: Sequence[Function],
    *,
    several: bool,
    call_format: CallFormat = "json",
    fields: Sequence[str] = (),
) -> Grammar:
    """Return the grammar of calls, with arguments that conform to the schemas.

    `functions` must not be empty. With `several` the answer may have more than one call. `fields`
    are the names of their schemas in errors.
    """
    calls = r'call ("\n" call)*' if several else "call"
    schemas = _schemas(functions, fields)
    bodies = _BODIES[call_format]([*zip(functions, schemas, strict=True)])
    return _grammar(fields, f"start: {calls}", f"call: {json.dumps(CALL_OPEN)} body", *bodies)


def text_or_calls(
    functions: Sequence[Function], call_format: CallFormat = "json", fields: Sequence[str] = ()
) -> Grammar:
    """Return the grammar of text with calls. The text must complete each call that it opens.

    Arguments of functions that are `strict` conform to their schema. Arguments of the other
    functions are any object. `functions` must not be empty. `fields` are the names of their schemas
    in errors.
    """
    schemas = _schemas(
        [each if each.strict else Function(name=each.name) for each in functions], fields
    )
    bodies = _BODIES[call_format]([*zip(functions, schemas, strict=True)])
    return _grammar(
        fields,
        "start: (before body)* REST?",
        f"before[lazy]: /(?s:.*){CALL_OPEN}/",
        f"REST: /(?s:.+)/ & ~/(?s:.*){CALL_OPEN}(?s:.*)/",
        *bodies,
    )


def _schemas(functions: Sequence[Function], fields: Sequence[str]) -> list[Schema]:
    """Return the schemas of the parameters of functions.

    Raises:
        ApiError: 400 with the field of a schema that cannot be converted.
    """
    schemas: list[Schema] = []
    for index, function in enumerate(functions):
        try:
            schemas.append(enforceable_schema(function.parameters or {}))
        except ValueError as error:
            field = fields[index] if fields else "tools"
            raise ApiError(400, f"{field}: {error}", param=field) from None
    return schemas


def _grammar(fields: Sequence[str], *rules: str) -> Grammar:
    names = tuple((f"call_{index}", field) for index, field in enumerate(fields))
    return replace(Grammar.lark("\n".join(rules)), name="tools", rule_names=names)


def _bodies(functions: Sequence[tuple[Function, Schema]]) -> list[str]:
    """Return the rules of the text after the opening tag, for functions with their schemas.

    The rule `call_0`, and rules whose name begins with `call_0_`, belong to the first function.
    """
    names = [f"call_{index}" for index in range(len(functions))]
    closing = json.dumps(f"\n{CALL_CLOSE}")
    return [
        rf'body: "\n" ({" | ".join(names)}) {closing}',
        *(f"{name}: {_call(*each)}" for name, each in zip(names, functions, strict=True)),
    ]


def _call(function: Function, schema: Schema) -> str:
    """Return the rule of a function's calls. References within the schema stay valid."""
    opening = json.dumps(f'{{"name": {json.dumps(function.name)}, "arguments": ')
    given = schema.get("x-guidance")
    options = {**(given if isinstance(given, Mapping) else {}), **_OPTIONS}
    arguments = {**schema, "type": "object", "x-guidance": options}
    return f'{opening} %json {json.dumps(arguments)} "}}"'


_BODIES: dict[CallFormat, Callable[[Sequence[tuple[Function, Schema]]], list[str]]] = {
    "json": _bodies,
    "xml": xml_bodies,
}
