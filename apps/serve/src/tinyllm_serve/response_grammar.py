"""What the text of an answer must conform to."""

from dataclasses import replace

from tinyllm_engine import Grammar

from tinyllm_serve.schemas.response_format import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
)
from tinyllm_serve.schemas.sampling import SamplingFields
from tinyllm_serve.schemas.structured_outputs import StructuredOutputs


def response_grammar(asked: SamplingFields) -> Grammar | None:
    """The grammar that a request names; None where all text will do."""
    return _of_outputs(asked.structured_outputs) or _of_format(asked.response_format)


def _of_outputs(wanted: StructuredOutputs | None) -> Grammar | None:
    match wanted:
        case StructuredOutputs(regex=str(pattern)):
            return replace(Grammar.regex(pattern), name="structured_outputs.regex")
        case StructuredOutputs(choice=list(texts)):
            return replace(Grammar.choice(texts), name="structured_outputs.choice")
        case StructuredOutputs(grammar=str(rules)):
            return replace(Grammar.lark(rules), name="structured_outputs.grammar")
    return None


def _of_format(wanted: ResponseFormat | None) -> Grammar | None:
    match wanted:
        case JsonObjectFormat():
            return Grammar.json_object()
        case JsonSchemaFormat():
            schema = wanted.json_schema.json_schema
            return replace(Grammar.json_schema(schema), name="response_format")
    return None
