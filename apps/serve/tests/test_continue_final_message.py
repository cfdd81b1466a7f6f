"""continue_final_message: answers that continue the text of the last message."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter
from tinyllm_qwen import Tokenizer
from tinyllm_qwen.testing import hybrid_checkpoint
from tinyllm_serve.generation.prompt import Prompt
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.chat import TemplateVariables
from tinyllm_serve.protocol.messages import Message
from tinyllm_serve.testing import Server

ASK = {"role": "user", "content": "what is <think>?"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer whose template adds reasoning before the last answer, and an end after it."""
    folder: Path = hybrid_checkpoint(tmp_path_factory.mktemp("models") / "qwen35")
    return Tokenizer.from_folder(folder)


REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer whose template shows reasoning, as Qwen3's shows that of the last turn."""
    folder: Path = hybrid_checkpoint(tmp_path_factory.mktemp("models") / "reasoner")
    (folder / "chat_template.jinja").write_text(REASONING)
    return Tokenizer.from_folder(folder)


def prompt(tokenizer: Tokenizer, content: str, **fields: Any) -> Prompt:
    turns = [ASK, {"role": "assistant", "content": content, **fields}]
    messages = TypeAdapter(list[Message]).validate_python(turns)
    return Prompt.of_chat(
        tokenizer, messages, [], TemplateVariables(), max_tokens=1000, continues=True
    )


@pytest.mark.parametrize(
    "content", ["RMSNorm divides each", "RMSNorm ", "<think>Hm.</think>\n\nIt"]
)
def test_the_prompt_ends_with_the_text(tokenizer: Tokenizer, content: str) -> None:
    made = prompt(tokenizer, content)
    text = tokenizer.decode(made.tokens, skip_special_tokens=False)
    assert text.endswith(content.rpartition("\n")[2])
    assert (made.opened, made.thinks) == (False, False)


def test_reasoning_goes_on(tokenizer: Tokenizer) -> None:
    made = prompt(tokenizer, "<think>Hm")
    assert tokenizer.decode(made.tokens, skip_special_tokens=False).endswith("<think>Hm")
    assert (made.opened, made.thinks) == (True, True)


def test_reasoning_without_a_text_goes_on(reasoner: Tokenizer) -> None:
    made = prompt(reasoner, "", reasoning_content="Hm.")
    assert reasoner.decode(made.tokens, skip_special_tokens=False).endswith("<think>\nHm.")
    assert (made.opened, made.thinks) == (True, True)


def test_a_text_after_reasoning_goes_on(reasoner: Tokenizer) -> None:
    made = prompt(reasoner, "It", reasoning_content="Hm.")
    text = reasoner.decode(made.tokens, skip_special_tokens=False)
    assert text.endswith("Hm.\n</think>\n\nIt")
    assert (made.opened, made.thinks) == (False, False)


@pytest.mark.parametrize(("content", "fields"), [("", {}), ("a", {"tool_calls": [CALL]})])
def test_only_a_text_can_be_continued(
    tokenizer: Tokenizer, content: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match="expected a last message of the assistant"):
        prompt(tokenizer, content, **fields)


def test_the_answer_is_the_continuation(scripted: Server) -> None:
    body = {"messages": [ASK, {"role": "assistant", "content": "</think>"}]}
    continued = body | {"continue_final_message": True, "add_generation_prompt": False}
    answer = httpx.post(f"{scripted.url}/v1/chat/completions", json=continued).json()
    assert answer["choices"][0]["message"]["content"].strip() == "It is so."
    tokens = httpx.post(f"{scripted.url}/tokenize", json=continued).json()["tokens"]
    text = httpx.post(f"{scripted.url}/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text.endswith("</think>")
