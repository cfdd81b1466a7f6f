"""Items of a response become the messages of a chat."""

from typing import Any

import pytest
from tinyllm_serve.protocol.messages import AssistantMessage
from tinyllm_serve.protocol.responses import ResponseRequest
from tinyllm_serve.routes.responses_input import as_chat

CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "12"}


def text(content: str, role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": content}


def reasoning(content: str) -> dict[str, Any]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": content}]}


@pytest.mark.parametrize(
    ("items", "answers"),
    [
        ([text("One."), text("Two.")], [(None, "One.", 0), (None, "Two.", 0)]),
        ([reasoning("r"), text("One."), CALL], [("r", "One.", 1)]),
        ([reasoning("r"), reasoning("s"), CALL, CALL], [("rs", None, 2)]),
        ([CALL, text("One.")], [(None, "One.", 1)]),
        ([text("One."), reasoning("r"), text("Two.")], [(None, "One.", 0), ("r", "Two.", 0)]),
        (
            [text("One."), text("next", "user"), text("Two.")],
            [(None, "One.", 0), (None, "Two.", 0)],
        ),
        ([reasoning("r"), CALL, OUTPUT, text("Two.")], [("r", None, 1), (None, "Two.", 0)]),
    ],
)
def test_an_answer_has_one_text(
    items: list[dict[str, Any]], answers: list[tuple[str | None, str | None, int]]
) -> None:
    body = ResponseRequest.model_validate({"input": [text("Hi", "user"), *items]})
    messages = [each for each in as_chat(body).messages if isinstance(each, AssistantMessage)]
    found = [
        (each.reasoning_content, each.content, len(each.tool_calls or [])) for each in messages
    ]
    assert found == answers
