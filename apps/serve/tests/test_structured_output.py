"""Answers that are held to a form: of text, after the thinking, and of calls."""

import json
import re

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_qwen import load
from tinyllm_serve.generation.grammar import text_or_calls
from tinyllm_serve.generation.parsers import ToolCallParser
from tinyllm_serve.protocol.tools import Tool
from tinyllm_serve.testing import Server

QUESTION = "what does rmsnorm do?"
SUM = 'start: TERM ("+" TERM){1,2}\nTERM: /[1-9]/'
FORMS = [
    ({"regex": "(yes|no)!{2}"}, r"(yes|no)!!"),
    ({"choice": ["norm", "an activation"]}, r"norm|an activation"),
    ({"grammar": SUM}, r"[1-9](\+[1-9]){1,2}"),
]
# Without thinking, which the template of the scripted model has a switch for.
AT_ONCE = {"reasoning_effort": "none"}


def tool(name: str, *cities: str, strict: bool | None = None) -> dict[str, object]:
    """A function whose schema refers to a part of itself, as pydantic writes schemas."""
    parameters = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"enum": cities}},
    }
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


TOOLS = [tool("weather", "Oslo", "Rome"), tool("map", "Lima")]


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(server: Server, text: str, model: str, **options: object) -> ChatCompletionMessage:
    with client(server) as connection:
        messages = [{"role": "user", "content": text}]
        answer = connection.chat.completions.create(model=model, messages=messages, **options)
    return answer.choices[0].message


@pytest.mark.parametrize(("outputs", "pattern"), FORMS)
def test_every_endpoint_holds_an_answer_to_its_form(
    pico: Server, outputs: dict[str, object], pattern: str
) -> None:
    extra = {"extra_body": {"structured_outputs": outputs}}
    with client(pico) as connection:
        plain = connection.completions.create(
            model="pico", prompt=QUESTION, n=2, temperature=1, seed=1, max_tokens=40, **extra
        )
        response = connection.responses.create(model="pico", input=QUESTION, **extra)
        with connection.chat.completions.stream(
            model="pico", messages=[{"role": "user", "content": QUESTION}], **extra
        ) as stream:
            streamed = stream.get_final_completion()
    texts = [choice.text for choice in plain.choices]
    texts += [response.output_text, streamed.choices[0].message.content]
    assert all(re.fullmatch(pattern, text) for text in texts), texts


def test_a_form_holds_after_the_thinking(scripted: Server) -> None:
    outputs = {"structured_outputs": {"choice": ["so.", "no"]}}
    message = ask(scripted, "#think", "scripted", extra_body=outputs)
    assert message.reasoning_content == "Hm."
    assert message.content in ("so.", "no")


def test_a_model_that_does_not_think_is_held_to_the_form_too(scripted: Server) -> None:
    """It would say {"a":1} at once, and its template has a switch for thinking."""
    outputs = {"structured_outputs": {"choice": ["so.", "no"]}}
    message = ask(scripted, "#json", "scripted", max_tokens=20, extra_body=outputs)
    assert message.reasoning_content  # it was made to begin, and has nothing to say
    assert not message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_required_is_of_a_schema(scripted: Server, stream: bool) -> None:
    """The model would say "Let me see." first."""
    with client(scripted) as connection:
        answer = connection.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "#call"}],
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            stream=stream,
            **AT_ONCE,
        )
        if stream:
            chunks = [chunk.choices[0] for chunk in answer]
            calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
            text = "".join(chunk.delta.content or "" for chunk in chunks)
            ending = chunks[-1].finish_reason
        else:
            message = answer.choices[0].message
            calls, text, ending = (
                message.tool_calls,
                message.content,
                answer.choices[0].finish_reason,
            )
    (call,) = calls
    cities = {"weather": ("Oslo", "Rome"), "map": ("Lima",)}[call.function.name]
    assert json.loads(call.function.arguments)["city"] in cities
    assert not text
    assert ending == "tool_calls"


def test_the_function_that_is_named_is_called(scripted: Server) -> None:
    named = {"type": "function", "function": {"name": "map"}}
    message = ask(
        scripted,
        "#call",
        "scripted",
        tools=TOOLS,
        tool_choice=named,
        max_tokens=200,
        parallel_tool_calls=False,
        **AT_ONCE,
    )
    assert [call.function.to_dict() for call in message.tool_calls] == [
        {"name": "map", "arguments": '{"city": "Lima"}'}
    ]
    flat = [{"type": "function", "strict": False, **each["function"]} for each in TOOLS]
    with client(scripted) as connection:
        response = connection.responses.create(
            model="scripted",
            input="#call",
            tools=flat,
            tool_choice={"type": "function", "name": "map"},
            parallel_tool_calls=False,
            reasoning={"effort": "none"},
        )
    (item,) = response.output
    assert (item.name, item.arguments) == ("map", '{"city": "Lima"}')


def test_beside_tools_a_form_leaves_the_choice_between_text_and_calls(scripted: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    both = {"tools": TOOLS, "response_format": form, "parallel_tool_calls": False, **AT_ONCE}
    text = ask(scripted, "#json", "scripted", **both)
    assert (json.loads(text.content), text.tool_calls) == ({"a": 1}, None)
    called = ask(scripted, "#rome", "scripted", **both)
    assert called.tool_calls[0].function.arguments == '{"city": "Rome"}'
    assert called.content is None


def call(name: str, arguments: object) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


OSLO, PARIS = {"city": "Oslo"}, {"city": "Paris"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A text, 2 < 3, <tool and <tool_calls>\n</tool_call>.",
        call("weather", OSLO),
        f"Let me see.\n{call('weather', OSLO)}\n{call('map', PARIS)} So.",
        call("map", {"any": [1, {"thing": None}]}),
        call("weather", PARIS),
        call("weather", {}),
        call("weather", OSLO | {"more": 1}),
        f"{call('map', {})} and {call('weather', PARIS)}",
    ],
)
def test_a_strict_function_is_called_by_its_schema_or_not_at_all(text: str) -> None:
    """`weather` is strict and `map` is not; jsonschema says what may be said."""
    tools = [tool("weather", "Oslo", strict=True), tool("map", "Lima")]
    schema = tools[0]["function"]["parameters"]
    parser = ToolCallParser(["weather", "map"])
    said = [part for part in [*parser.push(text), *parser.finish()] if hasattr(part, "arguments")]
    valid = jsonschema.Draft202012Validator(schema).is_valid
    fine = all(valid(json.loads(c.arguments)) for c in said if c.name == "weather")
    tokenizer = load("pico")[1]
    functions = [Tool.model_validate(each).function for each in tools]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    tokens = [*tokenizer.encode(text), min(tokenizer.eos_token_ids)]
    assert (compiler.compile(text_or_calls(functions)).num_allowed(tokens) == len(tokens)) == fine


@pytest.mark.parametrize("broken", ['{"name": "nothing"', "x", '\n{"name": "map", "arguments": 1}'])
def test_beside_strict_functions_what_begins_as_a_call_is_one(broken: str) -> None:
    tokenizer = load("pico")[1]
    functions = [Tool.model_validate(tool(name, "Oslo", strict=True)).function for name in ("map",)]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    tokens = tokenizer.encode(f"so: <tool_call>{broken}")
    assert compiler.compile(text_or_calls(functions)).num_allowed(tokens) < len(tokens)


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_that_would_call_against_a_strict_schema_cannot(
    scripted: Server, strict: bool
) -> None:
    tools = [tool("weather", "Oslo", strict=strict)]
    wrong = ask(scripted, "#rome", "scripted", tools=tools, max_tokens=20, **AT_ONCE)
    cities = [json.loads(each.function.arguments)["city"] for each in wrong.tool_calls or []]
    assert cities == ([] if strict else ["Rome"])
    right = ask(scripted, "#call", "scripted", tools=tools, parallel_tool_calls=False, **AT_ONCE)
    assert right.content == "Let me see."
    assert right.tool_calls[0].function.arguments == '{"city": "Oslo"}'
    with client(scripted) as connection:
        flat = [{"type": "function", **each["function"]} for each in tools]
        response = connection.responses.create(
            model="scripted",
            input="#rome",
            tools=flat,
            max_output_tokens=20,
            reasoning={"effort": "none"},
        )
    assert ("function_call" in [item.type for item in response.output]) == (not strict)
    assert response.tools[0].strict is strict


def test_strict_functions_cannot_be_served_without_an_end(scripted: Server) -> None:
    tools = [tool("weather", "Oslo", strict=True)]
    with pytest.raises(openai.BadRequestError, match="ignore_eos"):
        ask(scripted, "#call", "scripted", tools=tools, extra_body={"ignore_eos": True})
