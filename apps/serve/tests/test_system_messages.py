"""System messages that do not come first, with templates that refuse them and others."""

import shutil
from collections.abc import Sequence

import httpx
import pytest
from pydantic import TypeAdapter
from tinyllm_qwen import TemplateError, Tokenizer
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_serve.generation.prompt import Prompt
from tinyllm_serve.generation.system_messages import fold_later, join_leading
from tinyllm_serve.protocol.chat import TemplateVariables
from tinyllm_serve.protocol.messages import Message, text_of
from tinyllm_serve.testing import Server

PICO = resolve("pico")
REFUSING = (
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
Short = Sequence[tuple[str, str]]

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def messages(short: Short) -> list[Message]:
    """Make messages of roles and texts. The role "c" is an answer with a call."""
    forms: list[dict[str, object]] = []
    for role, text in short:
        if role == "c":
            forms.append({"role": "assistant", "content": text, "tool_calls": [CALL]})
        else:
            extra = {"tool_call_id": "c"} if role == "t" else {}
            forms.append({"role": ROLES[role], "content": text, **extra})
    return TypeAdapter(list[Message]).validate_python(forms)


def shortened(given: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message.role[0], text_of(message.content or "")) for message in given]


@pytest.mark.parametrize(
    ("given", "joined"),
    [
        ([("u", "1")], [("u", "1")]),
        ([("s", "1"), ("u", "2")], [("s", "1"), ("u", "2")]),
        ([("s", "1"), ("d", ""), ("d", "2"), ("u", "3")], [("s", "1\n\n2"), ("u", "3")]),
        ([("s", "1"), ("u", "2"), ("s", "3")], [("s", "1"), ("u", "2"), ("s", "3")]),
    ],
)
def test_leading_messages_are_one(given: Short, joined: Short) -> None:
    assert shortened(join_leading(messages(given))) == joined


@pytest.mark.parametrize(
    ("given", "folded"),
    [
        ([("s", "1"), ("u", "2")], [("s", "1"), ("u", "2")]),
        ([("u", "1"), ("s", "2"), ("d", "3"), ("u", "4")], [("u", "1\n\n2\n\n3"), ("u", "4")]),
        (
            [("u", "1"), ("a", "2"), ("s", "3"), ("u", "4")],
            [("u", "1"), ("a", "2"), ("u", "3\n\n4")],
        ),
        ([("u", "1"), ("a", "2"), ("s", "3")], [("u", "1"), ("a", "2"), ("u", "3")]),
        ([("a", "1"), ("s", "2"), ("a", "3")], [("a", "1"), ("u", "2"), ("a", "3")]),
        ([("c", ""), ("t", "1"), ("s", "2"), ("a", "3")], [("a", ""), ("t", "1\n\n2"), ("a", "3")]),
        ([("c", ""), ("s", "1"), ("t", "2"), ("t", "3")], [("a", ""), ("t", "2\n\n1"), ("t", "3")]),
        ([("u", "1"), ("s", ""), ("a", "2"), ("s", "")], [("u", "1"), ("a", "2")]),
    ],
)
def test_later_messages_are_folded(given: Short, folded: Short) -> None:
    assert shortened(fold_later(messages(given))) == folded


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with a template that refuses what Qwen3.5's template refuses."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PICO / name, folder)
    (folder / "chat_template.jinja").write_text(REFUSING)
    return Tokenizer.from_folder(folder)


def prompt(tokenizer: Tokenizer, short: Short) -> str:
    rendered = Prompt.of_chat(
        tokenizer, messages(short), [], TemplateVariables(), max_tokens=10_000
    )
    return tokenizer.decode(rendered.tokens, skip_special_tokens=False)


def test_a_reminder_leaves_the_earlier_prompt_as_it_is(refusing: Tokenizer) -> None:
    talk = [("s", "one"), ("d", "two"), ("u", "three"), ("a", "four"), ("u", "five")]
    before = prompt(refusing, talk)
    assert before.count("<|im_start|>system") == 1
    after = prompt(refusing, [*talk, ("s", "six")])
    shared = before[: before.index("five") + len("five")]
    assert after.startswith(f"{shared}\n\nsix<|im_end|>")


def test_other_refusals_stay(refusing: Tokenizer) -> None:
    with pytest.raises(TemplateError, match="No user query"):
        prompt(refusing, [("s", "one"), ("a", "two")])


def test_templates_that_accept_later_messages_get_them() -> None:
    text = prompt(Tokenizer.from_folder(PICO), [("u", "one"), ("s", "two"), ("u", "three")])
    assert text.count("<|im_start|>") == 4


def test_both_apis_answer(strict: Server) -> None:
    given = [("s", "a"), ("d", "b"), ("u", "c"), ("d", "e"), ("u", "#think")]
    turns = [{"role": ROLES[role], "content": text} for role, text in given]
    for path, name in (("/v1/chat/completions", "messages"), ("/v1/responses", "input")):
        answer = httpx.post(f"{strict.url}{path}", json={name: turns})
        assert answer.status_code == 200, answer.text
        assert "It is so." in answer.text
