"""Prompts of conversations: how often the chat template renders them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pydantic import TypeAdapter
from tinyllm_qwen import Tokenizer, load
from tinyllm_qwen.text.chat_template import ChatTemplate
from tinyllm_serve.generation.prompt import Prompt
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.chat import ChatRequest, TemplateVariables
from tinyllm_serve.protocol.messages import Message
from tinyllm_serve.protocol.tools import Tool

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
TOOLS = "{{ tools | tojson if tools }}"
SWITCH = "{{ '</think>' if enable_thinking is false }}"
EFFORTS = (
    "{% set effort = reasoning_effort | default('xhigh') %}{{ effort }}"
    "{{ raise_exception(effort) if effort not in ('low', 'medium', 'xhigh') }}"
)
SYSTEM = "{{ raise_exception('no system message') if messages[0].role != 'system' }}"
LONG = "a long conversation"


class Counted(ChatTemplate):
    """A template that counts how often it renders `LONG`."""

    def __init__(self, source: str) -> None:
        super().__init__({"default": source})
        self.count = 0

    def render(self, messages: Sequence[Mapping[str, object]], *rest: Any, **options: Any) -> str:
        self.count += any(message["content"] == LONG for message in messages)
        return super().render(messages, *rest, **options)


@pytest.fixture
def prompt() -> Callable[..., Prompt]:
    backend = load("pico")[1]._backend
    messages: list[Message] = TypeAdapter(list[Message]).validate_python(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": LONG}]
    )
    tool = Tool.model_validate({"type": "function", "function": {"name": "f"}})

    def make(
        template: ChatTemplate,
        *,
        tools: bool = True,
        thinking: bool | None = None,
        variables: TemplateVariables | None = None,
    ) -> Prompt:
        tokenizer = Tokenizer(backend, chat_template=template)
        variables = variables or TemplateVariables(enable_thinking=thinking)
        return Prompt.of_chat(tokenizer, messages, [tool] * tools, variables, max_tokens=99)

    return make


def test_a_conversation_is_rendered_once(prompt: Callable[..., Prompt]) -> None:
    template = Counted(TOOLS + PLAIN + SWITCH)
    made = prompt(template)
    assert template.count == 1
    assert made.reasoning_close == "</think>"  # which needs a second render
    assert made.reasoning_open == "<think>"
    assert template.count == 2


@pytest.mark.parametrize(
    ("source", "thinking", "thinks"),
    [
        (PLAIN + SWITCH, True, True),
        (PLAIN + SWITCH, False, False),
        (PLAIN, None, False),
        (PLAIN + "<think>\n", False, True),
    ],
)
def test_an_answer_begins_with_reasoning_if_the_template_has_a_switch(
    prompt: Callable[..., Prompt], source: str, thinking: bool | None, thinks: bool
) -> None:
    assert prompt(Counted(source), tools=False, thinking=thinking).thinks is thinks


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "medium"}, "medium"),
        ({"reasoning_effort": "high"}, "xhigh"),
        ({"reasoning_effort": "max"}, "xhigh"),
        ({"reasoning_effort": "none"}, "xhigh"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "medium"}},
            "medium",
        ),
    ],
)
def test_efforts_are_those_that_the_template_of_qwen3_8_knows(
    prompt: Callable[..., Prompt], fields: dict[str, object], effort: str
) -> None:
    body = {"messages": [{"role": "user", "content": "?"}], **fields}
    variables = ChatRequest.model_validate(body).template_variables
    assert variables.enable_thinking is (fields["reasoning_effort"] != "none")
    made = prompt(Counted(EFFORTS + PLAIN), tools=False, variables=variables)
    assert made.tokens == prompt(Counted(effort + PLAIN), tools=False).tokens


def test_tools_that_the_template_ignores_are_refused(prompt: Callable[..., Prompt]) -> None:
    with pytest.raises(ApiError, match="tools: expected none"):
        prompt(Counted(PLAIN))
    assert prompt(Counted(SYSTEM + TOOLS + PLAIN)).tokens  # fails without a system message
    with pytest.raises(ApiError, match="tools: expected none"):
        prompt(Counted(SYSTEM + PLAIN))
