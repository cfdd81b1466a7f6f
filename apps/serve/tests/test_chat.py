"""Chat completions through the official client."""

import json
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
)
from tinyllm_serve.testing import Server

TOOLS: list[ChatCompletionFunctionToolParam] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
]
QUESTION = "what does rmsnorm do?"


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def dumped(message: dict[str, Any]) -> ChatCompletionMessageParam:
    """Return a message of a response as a message to send, unchanged."""
    return cast("ChatCompletionMessageParam", message)


def ask(server: Server, text: str, **options: Any) -> ChatCompletion:
    with client(server) as connection:
        return connection.chat.completions.create(
            model=connection.models.list().data[0].id,
            messages=[{"role": "user", "content": text}],
            **options,
        )


def stream(server: Server, text: str, **options: Any) -> list[ChatCompletionChunk]:
    with client(server) as connection:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": text}]
        model = connection.models.list().data[0].id
        return list(
            connection.chat.completions.create(
                model=model, messages=messages, stream=True, **options
            )
        )


def test_a_stream_equals_the_complete_response(pico: Server) -> None:
    whole = ask(pico, QUESTION)
    assert "root mean square" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    chunks = stream(pico, QUESTION, stream_options={"include_usage": True})
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(texts) == whole.choices[0].message.content
    assert len(texts) > 10
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage.completion_tokens == whole.usage.completion_tokens > 10
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_reasoning_has_its_own_field(scripted: Server) -> None:
    answer = ask(scripted, "#think")
    message = answer.choices[0].message
    assert (message.to_dict()["reasoning_content"], message.content) == ("Hm.", "It is so.")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3
    deltas = [chunk.choices[0].delta for chunk in stream(scripted, "#think")]
    assert "".join(delta.content or "" for delta in deltas) == "It is so."
    reasoning = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(reasoning) == "Hm."


def test_function_calls_are_parsed(scripted: Server) -> None:
    answer = ask(scripted, "#call", tools=TOOLS, max_tokens=5)
    (call,) = answer.choices[0].message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Oslo"},
    )
    # The text after the call is an invalid call, so it stays text.
    assert answer.choices[0].message.content.startswith("Let me see.<tool_call>")
    alone = ask(scripted, "#call", tools=TOOLS, parallel_tool_calls=False)
    assert alone.choices[0].finish_reason == "tool_calls"
    assert alone.choices[0].message.content == "Let me see."
    streamed = stream(scripted, "#call", tools=TOOLS, parallel_tool_calls=False)
    chunks = [chunk.choices[0] for chunk in streamed]
    new, *pieces = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert (new.index, new.type, bool(new.id)) == (0, "function", True)
    assert new.function.to_dict() == {"name": "weather", "arguments": ""}
    assert [(piece.index, piece.id, piece.function.name) for piece in pieces] == [(0, None, None)]
    assert pieces[0].function.arguments == call.function.arguments
    assert chunks[-1].finish_reason == "tool_calls"
    plain = ask(scripted, "#call", tools=TOOLS, tool_choice="none", max_tokens=2)
    assert plain.choices[0].message.tool_calls is None
    assert "<tool_call>" in plain.choices[0].message.content


def test_arguments_stream_while_they_are_generated(scripted: Server) -> None:
    """The answer ends within the arguments, at its token limit."""
    options: dict[str, Any] = {"tools": TOOLS, "max_tokens": 5}
    answer = ask(scripted, "#long", **options).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("length", None)
    (call,) = answer.message.tool_calls or []
    assert call.function.arguments == '{"city": "Os'
    deltas = [chunk.choices[0].delta for chunk in stream(scripted, "#long", **options)]
    new, *pieces = [call for delta in deltas for call in delta.tool_calls or []]
    assert (new.function.name, new.function.arguments) == ("weather", "")
    assert [piece.function.arguments for piece in pieces] == ["{", '"city": ', '"Os']
    whole = ask(scripted, "#long", tools=TOOLS).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls[0].function.arguments == '{"city": "Oslo}"}'


def test_the_result_of_a_call_is_accepted(scripted: Server) -> None:
    call = ask(scripted, "#call", tools=TOOLS, parallel_tool_calls=False).choices[0].message
    messages: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "#call"},
        dumped(call.to_dict()),
        {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "#think"},
    ]
    with client(scripted) as connection:
        answer = connection.chat.completions.create(
            model="scripted", messages=messages, tools=TOOLS
        )
    assert answer.choices[0].message.content == "It is so."


NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def test_a_dumped_message_is_accepted(scripted: Server) -> None:
    """`model_dump` includes all fields of OpenAI, also null fields."""
    question: ChatCompletionMessageParam = {"role": "user", "content": "#call"}
    options: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False}
    message = ask(scripted, "#call", **options).choices[0].message
    result: ChatCompletionMessageParam = {
        "role": "tool",
        "tool_call_id": message.tool_calls[0].id,
        "content": "#think",
    }
    fields = message.model_dump()
    assert "refusal" in fields
    assert fields["refusal"] is None
    with client(scripted) as connection:
        answer = connection.chat.completions.create(
            model="scripted", messages=[question, dumped(fields), result], **options
        )
    assert answer.choices[0].message.content == "It is so."


def test_default_fields_of_sdks_are_accepted(scripted: Server) -> None:
    answer = ask(
        scripted,
        "#think",
        store=False,
        metadata={"a": "b"},
        service_tier="default",
        prompt_cache_key="session",
        prompt_cache_retention="in_memory",
        safety_identifier="anybody",
        verbosity="medium",
        modalities=["text"],
        reasoning_effort="minimal",
        extra_body={"audio": None, "anything": None},
    )
    assert answer.choices[0].message.content == "It is so."
    scripted.wait_for("request", path="/v1/chat/completions", user="anybody")


@pytest.mark.parametrize("options", [{"reasoning_effort": "none"}, {"extra_body": NO_THINKING}])
def test_reasoning_can_be_switched_off(scripted: Server, options: dict[str, object]) -> None:
    switched = ask(scripted, "#json", **options)
    assert switched.usage.prompt_tokens == ask(scripted, "#json").usage.prompt_tokens + 2


def test_each_choice_has_its_own_seed(pico: Server) -> None:
    options = {"n": 3, "temperature": 20.0, "max_tokens": 12, "seed": 5}
    answers = [choice.message.content for choice in ask(pico, QUESTION, **options).choices]
    assert len(set(answers)) == 3
    assert answers == [choice.message.content for choice in ask(pico, QUESTION, **options).choices]
    second = ask(pico, QUESTION, **options | {"n": 1, "seed": 6})
    assert second.choices[0].message.content == answers[1]
    streamed = ["", "", ""]
    for chunk in stream(pico, QUESTION, **options):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == answers


def test_a_negative_seed_and_a_negative_top_k_are_accepted(pico: Server) -> None:
    """OpenAI's seeds have 64 bits and a sign, and vLLM's top_k is off at -1."""
    options: dict[str, Any] = {"temperature": 20.0, "max_tokens": 12}

    def answers(seed: int, top_k: int) -> list[str | None]:
        extra = {"top_k": top_k}
        answer = ask(pico, QUESTION, **options, seed=seed, n=2, extra_body=extra)
        return [choice.message.content for choice in answer.choices]

    negative = answers(-2, -1)
    assert negative == answers(-2, 0)
    assert negative[1] == answers(2**64 - 1, -1)[0]
    assert len(set(negative)) == 2
    # -1 is a random seed, as in vLLM and llama-server.
    assert len({answer for _ in range(2) for answer in answers(-1, -1)}) == 4


def test_the_context_bounds_the_logprobs_of_an_answer(pico: Server) -> None:
    answer = ask(pico, QUESTION, logprobs=True, max_tokens=2_000_000)
    assert answer.choices[0].finish_reason == "stop"


def test_logprobs_belong_to_the_tokens(pico: Server) -> None:
    answer = ask(pico, QUESTION, logprobs=True, top_logprobs=3, max_tokens=6)
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    for token in tokens:
        # Greedy sampling takes the likeliest token.
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert bytes(token.bytes or []).decode() == token.token
        assert len(token.top_logprobs) == 3
    chunks = stream(pico, QUESTION, logprobs=True, max_tokens=6)
    streamed = [chunk.choices[0].logprobs for chunk in chunks]
    scores = [token.logprob for each in streamed if each for token in each.content]
    assert scores == pytest.approx([token.logprob for token in tokens], abs=1e-4)
    for chunk in chunks:  # LiteLLM ignores the log-probabilities of an empty delta
        (choice,) = chunk.choices
        text = "".join(token.token for token in choice.logprobs.content) if choice.logprobs else ""
        assert (choice.delta.content or "") == text


def test_logprobs_come_with_the_last_part_of_their_token(scripted: Server) -> None:
    """The token `CALL` starts a call, and has its arguments. The end token has no part."""
    tools = [{"type": "function", "function": {"name": "weather"}}]
    body = {"messages": [{"role": "user", "content": "#rome"}], "tools": tools, "logprobs": True}
    url = f"{scripted.url}/v1/chat/completions"
    lines = httpx.post(url, json=body | {"stream": True}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in chunks]
    scored = [(list(each["delta"]), each["finish_reason"]) for each in choices if each["logprobs"]]
    assert scored == [(["tool_calls"], None), ([], "tool_calls")]
    assert "arguments" in choices[-2]["delta"]["tool_calls"][0]["function"]


def test_sampling_fields_reach_the_model(pico: Server) -> None:
    greedy = ask(pico, QUESTION, max_tokens=8).choices[0].message.content
    tokens = ask(pico, QUESTION, max_tokens=1, logprobs=True).choices[0].logprobs.content
    first = tokens[0].token
    assert greedy.startswith(first)
    word = greedy.split()[2]
    assert ask(pico, QUESTION, stop=[word]).choices[0].message.content == greedy.partition(word)[0]
    (token, *_) = httpx.post(f"{pico.url}/tokenize", json={"prompt": first}).json()["tokens"]
    banned = ask(pico, QUESTION, logit_bias={str(token): -100}, max_tokens=8)
    assert not banned.choices[0].message.content.startswith(first)
    for option in ("frequency_penalty", "presence_penalty"):
        repeated = ask(pico, QUESTION, max_tokens=60, **{option: 2.0})
        assert repeated.choices[0].message.content != greedy
    long = ask(pico, QUESTION, max_completion_tokens=300, extra_body={"ignore_eos": True})
    assert long.usage.completion_tokens == 300
    assert long.choices[0].finish_reason == "length"


def test_a_repeated_prompt_is_cached(pico: Server) -> None:
    question = "Tell me about attention, please. " * 20
    ask(pico, question, max_tokens=1)
    again = ask(pico, question, max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens >= 32


def test_an_answer_conforms_to_the_schema(pico: Server) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"fast": {"type": "boolean"}, "kind": {"enum": ["norm", "activation"]}},
        "required": ["fast", "kind"],
        "additionalProperties": False,
    }
    schema_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    answer = ask(
        pico, QUESTION, response_format=schema_format, max_tokens=200, temperature=1, seed=1
    )
    found = json.loads(answer.choices[0].message.content or "")
    assert found.keys() == {"fast", "kind"}
    assert isinstance(found["fast"], bool)
    assert found["kind"] in schema["properties"]["kind"]["enum"]


def test_calls_in_xml_are_parsed(scripted_xml: Server) -> None:
    server = scripted_xml
    answer = ask(server, "#xml", tools=TOOLS).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", "Let me see.")
    (call,) = answer.message.tool_calls or []
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": 'Oslo "x"'}
    deltas = [chunk.choices[0].delta for chunk in stream(server, "#xml", tools=TOOLS)]
    new, *pieces = [call for delta in deltas for call in delta.tool_calls or []]
    assert (new.function.name, new.function.arguments) == ("weather", "")
    texts = [piece.function.arguments or "" for piece in pieces]
    assert "".join(texts) == call.function.arguments
    assert "Os" in texts  # before the value is complete


@pytest.mark.parametrize("arguments", ['{"city": "Os', "", "null", "[1]", '{"city": "Oslo"}'])
def test_arguments_of_any_text_can_be_sent_back(scripted_xml: Server, arguments: str) -> None:
    """The server's own arguments may be incomplete, if the answer ended at the token limit."""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12 degrees"},
    ]
    body = {"messages": turns, "max_tokens": 1}
    answer = httpx.post(f"{scripted_xml.url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
