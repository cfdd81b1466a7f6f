"""Fields that clients send by default, or send back: accepted, or refused with a reason."""

from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel
from tinyllm_serve.protocol.chat import ChatRequest
from tinyllm_serve.testing import Server

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, TOKENIZE = "/v1/embeddings", "/tokenize"
ASK = {"role": "user", "content": "#think"}
FUNCTION = {"name": "weather", "arguments": '{"city": "Oslo"}'}
CALL = {"id": "c", "type": "function", "function": FUNCTION}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "#think"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [ASK], "max_tokens": 8},
    COMPLETIONS: {"prompt": "#think", "max_tokens": 8},
    RESPONSES: {"input": "#think"},
    EMBEDDINGS: {"input": "a"},
    TOKENIZE: {"messages": [ASK]},
}


def post(server: Server, path: str, fields: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=BODIES.get(path, {}) | fields)


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def answered(**fields: Any) -> dict[str, Any]:
    """Return a conversation in which the model has called a function."""
    return {"messages": [ASK, {"role": "assistant", "content": "b", **fields}, ASK]}


def called(call: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [ASK, {"role": "assistant", "tool_calls": [call]}, RESULT]}


def part(kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": kind, "text": "#think", **fields}]}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        # Sent back as the openai client has parsed them.
        (CHAT, called(CALL | {"index": 0})),
        (CHAT, called(CALL | {"function": FUNCTION | {"parsed_arguments": {"city": ["a"]}}})),
        (CHAT, answered(parsed={"a": [1, None]})),
        (CHAT, answered(annotations=[], reasoning_details=[], thinking_blocks=[], refusal=None)),
        (CHAT, answered(reasoning="Hm.")),
        (CHAT, answered(reasoning="Hm.", reasoning_content="Hm.")),
        (RESPONSES, {"input": part("input_text", parsed={"a": 1})}),
        (RESPONSES, {"input": [{**ASK, "role": "assistant", "phase": "final_answer"}, ASK]}),
        (RESPONSES, {"input": "#think", "reasoning": {"summary": "detailed"}}),
        (RESPONSES, {"input": "#think", "reasoning": {"summary": "concise"}}),
        # Frameworks and benchmarks.
        (CHAT, {"messages": [ASK, answered(tool_calls=[CALL])["messages"][1], RESULT | FUNCTION]}),
        (CHAT, {"messages": [ASK | {"type": "text"}]}),
        (CHAT, {"tools": []}),
        (CHAT, {"messages": part("text", cache_control=EPHEMERAL)}),
        (CHAT, {"tools": [TOOL | {"cache_control": EPHEMERAL}]}),
        (RESPONSES, {"input": part("input_text", cache_control=EPHEMERAL)}),
        (RESPONSES, {"ignore_eos": False, "top_logprobs": 0}),
        (CHAT, {"stream": True, "stream_options": {"continuous_usage_stats": False}}),
        # Neutral values.
        (COMPLETIONS, {"best_of": 1, "echo": False, "min_tokens": 0, "length_penalty": 1.0}),
        (COMPLETIONS, {"best_of": 2, "n": 2}),
        (COMPLETIONS, {"skip_special_tokens": True, "use_beam_search": False}),
        (CHAT, {"best_of": 1, "echo": False, "min_tokens": 0, "length_penalty": 1}),
        (CHAT, {"continue_final_message": False, "add_generation_prompt": True}),
        (COMPLETIONS, {"suffix": "", "stop_token_ids": [], "include_stop_str_in_output": False}),
        (CHAT, {"spaces_between_special_tokens": True, "return_tokens_as_token_ids": False}),
        (CHAT, {"cache_prompt": True, "include_reasoning": True}),
        (TOKENIZE, {"add_generation_prompt": True, "continue_final_message": False}),
        (TOKENIZE, {"add_special_tokens": True, "return_token_strs": False}),
        (TOKENIZE, {"messages": None, "prompt": "a", "add_special_tokens": False}),
    ],
)
def test_a_field_that_changes_nothing_is_accepted(
    scripted: Server, path: str, fields: dict[str, Any]
) -> None:
    if "tool_calls" in str(fields):
        fields = {**fields, "messages": [without_arguments(each) for each in fields["messages"]]}
    answer = post(scripted, path, fields)
    assert answer.status_code == 200, answer.text


def without_arguments(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "arguments"}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
REFERENCE = [ASK, {"type": "item_reference", "id": "msg_1"}]


@pytest.mark.parametrize(
    ("path", "fields", "param", "reason"),
    [
        (COMPLETIONS, {"best_of": 2}, "best_of", "expected 1, as n, got 2: "),
        (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of", "expected 2, as n, got 1: "),
        (COMPLETIONS, {"min_tokens": 4}, "min_tokens", "expected 0: "),
        (COMPLETIONS, {"min_tokens": False}, "min_tokens", "expected 0: "),
        (CHAT, {"skip_special_tokens": False}, "skip_special_tokens", "expected true: "),
        (CHAT, {"use_beam_search": True}, "use_beam_search", "expected false: "),
        (CHAT, {"length_penalty": 1.2}, "length_penalty", "expected 1: "),
        (CHAT, {"echo": True}, "echo", "expected false: "),
        (CHAT, {"add_generation_prompt": False}, "add_generation_prompt", "leave it out"),
        (CHAT, {"continue_final_message": True}, "continue_final_message", "a last message of"),
        (TOKENIZE, {"return_token_strs": True}, "return_token_strs", "/detokenize"),
        (RESPONSES, {"top_logprobs": 1}, "top_logprobs", "/v1/chat/completions"),
        (COMPLETIONS, {"suffix": "b"}, "suffix", "fim_prefix"),
        (COMPLETIONS, {"stop_token_ids": [5]}, "stop_token_ids", "the texts of the tokens as stop"),
        (CHAT, {"include_reasoning": False}, "include_reasoning", "reasoning_effort"),
        (CHAT, {"cache_prompt": False}, "cache_prompt", "expected true: "),
        (CHAT, {"repeat_penalty": 1.1}, "repeat_penalty", "use repetition_penalty"),
        (COMPLETIONS, {"n_predict": 5}, "n_predict", "use max_tokens"),
        (CHAT, {"think": False}, "think", "reasoning_effort"),
        (CHAT, {"reasoning": {"effort": "low"}}, "reasoning", "chat_template_kwargs"),
        (COMPLETIONS, {"guided_json": {}}, "guided_json", "use structured_outputs"),
        (CHAT, {"grammar": "a"}, "grammar", "use structured_outputs"),
        (CHAT, {"num_ctx": 8192}, "num_ctx", "--max-model-len"),
        (CHAT, {"keep_alive": "5m"}, "keep_alive", "leave it out"),
        (CHAT, {"num_gpu": 1}, "num_gpu", "the operator decides"),
        (CHAT, {"mirostat": 1}, "mirostat", "does not sample so: leave it out"),
        (CHAT, {"format": "json"}, "format", "use structured_outputs"),
        (CHAT, {"max_tokens": -1}, "max_tokens", "leave it out for the server's limit"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", "leave it out"),
        (COMPLETIONS, {"max_tokens": -1}, "max_tokens", "leave it out"),
        (RESPONSES, {"max_output_tokens": -1}, "max_output_tokens", "leave it out"),
        (RESPONSES, {"max_tokens": 5}, "max_tokens", "use max_output_tokens"),
        (RESPONSES, {"reasoning_effort": "low"}, "reasoning_effort", "use reasoning.effort"),
        (RESPONSES, {"response_format": {}}, "response_format", "use text.format"),
        (RESPONSES, {"seed": 1}, "seed", "/v1/chat/completions has it"),
        (EMBEDDINGS, {"dimensions": 8}, "dimensions", "hidden states"),
        (RESPONSES, {"previous_response_id": "a"}, "previous_response_id", "send all items"),
        (RESPONSES, {"conversation": "a"}, "conversation", "send all items"),
        (RESPONSES, {"input": REFERENCE}, "input.1", "send the items themselves"),
        (RESPONSES, {"store": True}, "store", "nothing is stored"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages.0.content.0.type",
            "text alone",
        ),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [PICTURE]}]},
            "input.0.content.0.type",
            "text alone",
        ),
        (
            CHAT,
            {"messages": part("refusal", refusal="No.")},
            "messages.0.content.0.type",
            "expected text: write the refusal as a text",
        ),
        (
            CHAT,
            {"messages": part("input_text")},
            "messages.0.content.0.type",
            "expected text, as in chat completions",
        ),
        (
            RESPONSES,
            {"input": part("text")},
            "input.0.content.0.type",
            "text is the type of /v1/chat/completions",
        ),
        (
            RESPONSES,
            {"input": part("refusal", refusal="No.")},
            "input.0.content.0.type",
            "write the refusal as a text",
        ),
        (CHAT, answered(refusal="No."), "messages.1.refusal", "write its text as content"),
        (CHAT, answered(function_call={}), "messages.1.function_call", "use tool_calls"),
        (CHAT, answered(annotations=[1]), "messages.1.annotations", "at most 0"),
        (CHAT, answered(reasoning="a", reasoning_content="b"), "messages.1", "reasoning"),
    ],
)
def test_other_values_are_refused_with_a_reason(
    scripted: Server, path: str, fields: dict[str, Any], param: str, reason: str
) -> None:
    refused = post(scripted, path, fields)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], reason in error["message"]) == (param, True), error


class Weather(BaseModel):
    """Return the weather in a city."""

    city: str


class Answer(BaseModel):
    """An answer in JSON."""

    a: int


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the client's own fields
def test_streamed_and_parsed_messages_of_the_openai_client_are_sent_back(scripted: Server) -> None:
    tool = openai.pydantic_function_tool(Weather, name="weather")
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": "#rome"}]
    with client(scripted) as connection:
        with connection.chat.completions.stream(model="scripted", messages=asked) as stream:
            plain = stream.get_final_completion().choices[0].message
        with connection.chat.completions.stream(
            model="scripted", messages=asked, tools=[tool], reasoning_effort="none"
        ) as stream:
            streamed = stream.get_final_completion().choices[0].message
        parsed = connection.chat.completions.parse(
            model="scripted",
            messages=[{"role": "user", "content": "#json"}],
            response_format=Answer,
            reasoning_effort="none",
        )
        assert parsed.choices[0].message.parsed == Answer(a=1)
        assert streamed.tool_calls[0].function.parsed_arguments == Weather(city="Rome")
        for message in (plain, streamed, parsed.choices[0].message):
            calls = getattr(message, "tool_calls", None) or []
            results = [{**RESULT, "tool_call_id": call.id} for call in calls]
            for form in (message, message.model_dump(warnings=False)):
                conversation: Any = [*asked, form, *results, ASK]
                answer = connection.chat.completions.create(model="scripted", messages=conversation)
                assert answer.choices[0].message.content == "It is so."


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_parsed_items_of_the_openai_client_are_sent_back(scripted: Server) -> None:
    with client(scripted) as connection:
        first = connection.responses.parse(
            model="scripted", input="#json", text_format=Answer, reasoning={"effort": "none"}
        )
        assert first.output_parsed == Answer(a=1)
        for dump in (lambda item: item, lambda item: item.model_dump(warnings=False)):
            items: Any = [{"role": "user", "content": "#json"}, *map(dump, first.output), ASK]
            answer = connection.responses.create(model="scripted", input=items)
            assert answer.output_text == "It is so."


def test_fields_of_answers_do_not_reach_the_template() -> None:
    call = {**CALL, "index": 0, "function": {**FUNCTION, "parsed_arguments": {"a": 1}}}
    message = {"role": "assistant", "reasoning": "Hm.", "parsed": 1, "tool_calls": [call]}
    chat = ChatRequest.model_validate({"messages": [message | {"type": "text"}]})
    assert chat.messages[0].template_form == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "c",
                "type": "function",
                "function": {"name": "weather", "arguments": {"city": "Oslo"}},
            }
        ],
        "name": None,
    }


def test_responses_can_ignore_the_end(scripted: Server) -> None:
    body = {"input": "#json", "ignore_eos": True, "max_output_tokens": 20}
    answer = post(scripted, RESPONSES, body).json()
    assert answer["usage"]["output_tokens"] == 20
    assert answer["status"] == "incomplete"
