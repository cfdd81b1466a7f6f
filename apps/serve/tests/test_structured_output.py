"""Structured output: formats of text, tool choice, and strict functions."""

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pytest
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessage,
    ChatCompletionMessageParam,
)
from openai.types.responses import FunctionToolParam
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_qwen import load
from tinyllm_serve.generation.grammar import text_or_calls
from tinyllm_serve.generation.parts import CallArguments, CallStart
from tinyllm_serve.generation.tool_calls import ToolCallParser
from tinyllm_serve.protocol.tools import Function, Tool
from tinyllm_serve.testing import Server

QUESTION = "what does rmsnorm do?"
SUM = 'start: TERM ("+" TERM){1,2}\nTERM: /[1-9]/'
FORMS = [
    ({"regex": "(yes|no)!{2}"}, r"(yes|no)!!"),
    ({"choice": ["norm", "an activation"]}, r"norm|an activation"),
    ({"grammar": SUM}, r"[1-9](\+[1-9]){1,2}"),
    ({"json": {"enum": ["yes", "no"]}, "json_object": None}, r'"(yes|no)"'),
]
# Without reasoning, which the template of the scripted model can switch off.
AT_ONCE = {"reasoning_effort": "none"}


def tool(name: str, *cities: str, strict: bool | None = None) -> ChatCompletionFunctionToolParam:
    """Return a function whose schema has references, as pydantic writes them."""
    parameters: dict[str, object] = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"enum": cities}},
    }
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters, "strict": strict},
    }


def response_tool(tool: ChatCompletionFunctionToolParam) -> FunctionToolParam:
    """Return a function of a chat completion in the form of the Responses API."""
    function = tool["function"]
    return {
        "type": "function",
        "name": function["name"],
        "parameters": function["parameters"],
        "strict": function["strict"],
    }


TOOLS = [tool("weather", "Oslo", "Rome"), tool("map", "Lima")]


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(server: Server, text: str, model: str, **options: Any) -> ChatCompletionMessage:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": text}]
    with client(server) as connection:
        answer: ChatCompletion = connection.chat.completions.create(
            model=model, messages=messages, **options
        )
    return answer.choices[0].message


@pytest.mark.parametrize(
    "outputs",
    [{"json_object": True}, {"json": {"type": "object"}}, {"json": '{"type": "object"}'}],
)
def test_structured_outputs_can_be_any_object(scripted: Server, outputs: dict[str, object]) -> None:
    with client(scripted) as connection:
        answer = connection.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "#json"}],
            reasoning_effort="none",
            extra_body={"structured_outputs": outputs},
        )
    assert answer.choices[0].message.content == '{"a":1}'


@pytest.mark.parametrize(("outputs", "pattern"), FORMS)
def test_every_endpoint_has_structured_outputs(
    pico: Server, outputs: dict[str, object], pattern: str
) -> None:
    extra_body = {"structured_outputs": outputs}
    with client(pico) as connection:
        plain = connection.completions.create(
            model="pico",
            prompt=QUESTION,
            n=2,
            temperature=1,
            seed=1,
            max_tokens=40,
            extra_body=extra_body,
        )
        response = connection.responses.create(model="pico", input=QUESTION, extra_body=extra_body)
        with connection.chat.completions.stream(
            model="pico",
            messages=[{"role": "user", "content": QUESTION}],
            extra_body=extra_body,
        ) as stream:
            streamed = stream.get_final_completion()
    texts = [choice.text for choice in plain.choices]
    texts += [response.output_text, streamed.choices[0].message.content or ""]
    assert all(re.fullmatch(pattern, text) for text in texts), texts


def test_the_format_holds_after_the_reasoning(scripted: Server) -> None:
    outputs = {"structured_outputs": {"choice": ["so.", "no"]}}
    message = ask(scripted, "#think", "scripted", extra_body=outputs)
    assert message.to_dict()["reasoning_content"] == "Hm."
    assert message.content in ("so.", "no")


def test_the_format_holds_for_a_model_that_skips_reasoning(scripted: Server) -> None:
    """The model would generate {"a":1} at once, and its template can switch reasoning off."""
    outputs = {"structured_outputs": {"choice": ["so.", "no"]}}
    message = ask(scripted, "#json", "scripted", max_tokens=20, extra_body=outputs)
    assert message.to_dict()["reasoning_content"]  # the grammar forces the reasoning to begin
    assert not message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_conforms_to_its_schema(scripted: Server, stream: bool) -> None:
    """The model would generate "Let me see." first."""
    with client(scripted) as connection:
        answer = connection.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "#call"}],
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            stream=stream,
            reasoning_effort="none",
        )
        if stream:
            assert isinstance(answer, openai.Stream)
            chunks = [chunk.choices[0] for chunk in answer]
            calls = [call.function for chunk in chunks for call in chunk.delta.tool_calls or []]
            functions = [(calls[0].name, "".join(call.arguments or "" for call in calls))]
            text = "".join(chunk.delta.content or "" for chunk in chunks)
            ending = chunks[-1].finish_reason
        else:
            assert isinstance(answer, ChatCompletion)
            (choice,) = answer.choices
            functions = [
                (call.function.name, call.function.arguments)
                for call in choice.message.tool_calls or []
            ]
            text, ending = choice.message.content or "", choice.finish_reason
    ((name, arguments),) = functions
    cities = {"weather": ("Oslo", "Rome"), "map": ("Lima",)}[name or ""]
    assert json.loads(arguments or "")["city"] in cities
    assert not text
    assert ending == "tool_calls"


def test_the_named_function_is_called(scripted: Server) -> None:
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
    with client(scripted) as connection:
        response = connection.responses.create(
            model="scripted",
            input="#call",
            tools=[response_tool(each) for each in TOOLS],
            tool_choice={"type": "function", "name": "map"},
            parallel_tool_calls=False,
            reasoning={"effort": "none"},
        )
    (item,) = response.output
    assert (item.name, item.arguments) == ("map", '{"city": "Lima"}')


def test_a_format_beside_tools_allows_text_and_calls(scripted: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    both = {"tools": TOOLS, "response_format": form, "parallel_tool_calls": False, **AT_ONCE}
    text = ask(scripted, "#json", "scripted", **both)
    assert (json.loads(text.content or ""), text.tool_calls) == ({"a": 1}, None)
    called = ask(scripted, "#rome", "scripted", **both)
    assert called.tool_calls[0].function.arguments == '{"city": "Rome"}'
    assert called.content is None
    # instructor sends both. The format is that of text, and such an answer has none.
    demanded = both | {"tool_choice": {"type": "function", "function": {"name": "map"}}}
    called = ask(scripted, "#json", "scripted", **demanded)
    assert called.tool_calls[0].function.arguments == '{"city": "Lima"}'
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
def test_calls_of_strict_functions_conform_to_the_schema(text: str) -> None:
    """`weather` is strict and `map` is not. The oracle is jsonschema."""
    tools = [tool("weather", "Oslo", strict=True), tool("map", "Lima")]
    schema = tools[0]["function"]["parameters"]
    parser = ToolCallParser(["weather", "map"])
    calls = []
    for part in [*parser.push(text), *parser.finish()]:
        match part:
            case CallStart(name):
                calls.append((name, ""))
            case CallArguments(piece):
                calls[-1] = (calls[-1][0], calls[-1][1] + piece)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    valid_calls = all(valid(json.loads(given)) for name, given in calls if name == "weather")
    tokenizer = load("pico")[1]
    functions = [Tool.model_validate(each).function for each in tools]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    tokens = [*tokenizer.encode(text), min(tokenizer.eos_token_ids)]
    assert (
        compiler.compile(text_or_calls(functions)).constraint().num_allowed(tokens) == len(tokens)
    ) == valid_calls


@pytest.mark.parametrize(
    ("call_format", "body"),
    [
        ("json", '{"name": "now", "arguments": {}}'),
        ("xml", "<function=now>\n</function>"),
    ],
)
def test_a_strict_function_may_have_no_parameters(
    call_format: Literal["json", "xml"], body: str
) -> None:
    tokenizer = load("pico")[1]
    grammar = text_or_calls([Function(name="now", strict=True)], call_format)
    constraint = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(grammar).constraint()
    tokens = tokenizer.encode(f"<tool_call>\n{body}\n</tool_call>")
    assert constraint.num_allowed(tokens) == len(tokens)


@pytest.mark.parametrize("broken", ['{"name": "nothing"', "x", '\n{"name": "map", "arguments": 1}'])
def test_beside_strict_functions_an_open_call_must_be_completed(broken: str) -> None:
    tokenizer = load("pico")[1]
    functions = [Tool.model_validate(tool(name, "Oslo", strict=True)).function for name in ("map",)]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    tokens = tokenizer.encode(f"so: <tool_call>{broken}")
    assert compiler.compile(text_or_calls(functions)).constraint().num_allowed(tokens) < len(tokens)


@pytest.mark.parametrize("strict", [False, True])
def test_strict_functions_prevent_invalid_calls(scripted: Server, strict: bool) -> None:
    tools = [tool("weather", "Oslo", strict=strict)]
    wrong = ask(scripted, "#rome", "scripted", tools=tools, max_tokens=20, **AT_ONCE)
    cities = [json.loads(each.function.arguments)["city"] for each in wrong.tool_calls or []]
    assert cities == ([] if strict else ["Rome"])
    right = ask(scripted, "#call", "scripted", tools=tools, parallel_tool_calls=False, **AT_ONCE)
    assert right.content == "Let me see."
    assert right.tool_calls[0].function.arguments == '{"city": "Oslo"}'
    with client(scripted) as connection:
        response = connection.responses.create(
            model="scripted",
            input="#rome",
            tools=[response_tool(each) for each in tools],
            max_output_tokens=20,
            reasoning={"effort": "none"},
        )
    assert ("function_call" in [item.type for item in response.output]) == (not strict)
    assert response.tools[0].strict is strict


def test_strict_functions_exclude_ignore_eos(scripted: Server) -> None:
    tools = [tool("weather", "Oslo", strict=True)]
    with pytest.raises(openai.BadRequestError, match="ignore_eos"):
        ask(scripted, "#call", "scripted", tools=tools, extra_body={"ignore_eos": True})
