"""ChatTemplate renders as transformers does (golden files), and stops hostile templates."""

import enum
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tinyllm_qwen.errors import CheckpointError, TemplateError
from tinyllm_qwen.text.chat_template import ChatTemplate
from tinyllm_qwen.text.sandbox import meter
from tinyllm_qwen.text.sandbox.sandbox import SandboxedTemplate

ANSWERS = json.loads((Path(__file__).parents[1] / "goldens" / "chat_templates.json").read_text())
USER = {"role": "user", "content": "hi"}


def render(template: str, *messages: dict[str, Any], **variables: object) -> str:
    return ChatTemplate({"default": template}).render(messages or (USER,), variables)


@pytest.mark.parametrize("case", ANSWERS["templates"], ids=lambda case: case["name"])
def test_a_template_sees_the_environment_of_transformers(case: dict[str, Any]) -> None:
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    template = ChatTemplate({"default": case["template"]}, variables=special)
    assert template.render(case["messages"], case["variables"]) == case["prompt"]


def test_the_refusal_of_a_template_is_given_in_its_words() -> None:
    with pytest.raises(TemplateError, match=r"^no such role: user$"):
        render("{{ raise_exception('no such role: ' + messages[0].role) }}")


@pytest.mark.parametrize(
    "template",
    ["{{ 1 // 0 }}", "{{ missing.field }}", "{{ 'a' + 1 }}", "{% include 'x' %}"],
)
def test_a_template_that_fails_says_how(template: str) -> None:
    with pytest.raises(TemplateError, match=r"fails on these messages: .*Error: "):
        render(template)


@pytest.mark.parametrize(
    "template", ["{% if %}", "{% for x in y %}", "{{ x | nope }}", "{% nope %}", "{{", "(" * 5]
)
def test_only_a_broken_template_is_refused(template: str) -> None:
    if template.startswith("("):
        assert render(template) == template
    else:
        with pytest.raises(CheckpointError, match="broken at line 1"):
            render(template)


def test_a_template_that_nests_too_deeply_is_refused() -> None:
    with pytest.raises(CheckpointError, match="nested too deeply"):
        render("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ namespace(__html__=1) }}",
        "{% set ns = namespace() %}{% set ns.__call__ = 1 %}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
    ],
)
def test_pythons_internals_and_changes_of_values_are_out_of_reach(template: str) -> None:
    with pytest.raises(CheckpointError, match="do not trust this checkpoint"):
        render(template)


BIG = "range(99999)"
GROWING = (
    "{%% set n = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set n.x = %s %%}{%% endfor %%}"
)


@pytest.mark.parametrize(
    "template",
    [
        f"{{% for a in {BIG} %}}{{% for b in {BIG} %}}{{% endfor %}}{{% endfor %}}",
        f"{{% for a in {BIG} %}}{{% if {BIG} | sum %}}{{% endif %}}{{% endfor %}}",
        f"{{% for a in {BIG} recursive %}}{{{{ loop({BIG}) }}}}{{% endfor %}}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        GROWING % ("'ab'", "n.x ~ n.x"),
        GROWING % ("'ab'", "n.x + n.x"),
        GROWING % ("[1]", "n.x + n.x"),
        GROWING % ("9", "n.x * n.x"),
        "{{ 'a' * 10 ** 12 }}",
        "{{ 10 ** 12 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
    ],
)
def test_a_template_without_end_is_stopped(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Under pytest, run-time type checks make each step ten times slower.
    monkeypatch.setattr(meter, "STEPS", meter.STEPS // 10)
    start = time.process_time()  # not wall time, which depends on the load of the machine
    with pytest.raises(CheckpointError, match="was stopped"):
        render(template)
    assert time.process_time() - start < 20


def test_a_stopped_template_renders_the_next_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meter, "STEPS", 1000)
    source = "{% for i in range(n) %}{% for j in range(n) %}x{% endfor %}{% endfor %}"
    template = ChatTemplate({"default": source})
    with pytest.raises(CheckpointError, match="does not come to an end"):
        template.render([USER], {"n": 99})
    assert template.render([USER], {"n": 2}) == "xxxx"


def test_a_conversation_of_megabytes_is_no_reason_to_stop() -> None:
    source = (
        "{% for m in messages %}{{ '<' + m.role + '>\\n' + m.content.strip() + '!' }}{% endfor %}"
    )
    turns = [{"role": "user", "content": "words " * 2000}] * 500
    assert len(render(source, *turns)) == 500 * (len("<user>\n") + 2000 * 6)


def test_the_messages_are_not_changed() -> None:
    message = {"role": "user", "content": None, "more": {"a": (1, 2)}}
    assert (
        render("{{ messages[0] | tojson }}", message) == '{"role": "user", "more": {"a": [1, 2]}}'
    )
    assert message == {"role": "user", "content": None, "more": {"a": (1, 2)}}


def test_an_enum_of_texts_is_its_text() -> None:
    role = enum.Enum("Role", {"USER": "user"}, type=str)  # type: ignore[misc]
    assert render("{{ messages[0].role }}", {"role": role.USER}) == "user"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"messages\[0\]\.content: expected text.*got object"),
        ([{"x": b"y"}], r"messages\[0\]\.content\[0\]\.x: .*got bytes"),
        ({1: 2}, r"messages\[0\]\.content: .*key, got 1"),
    ],
)
def test_data_that_is_not_plain_is_refused_with_its_path(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render("x", {"role": "user", "content": value})


def test_no_messages_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ChatTemplate({"default": "x"}).render([])


def test_the_date_is_today() -> None:
    today = time.strftime("%Y-%m-%d")
    assert render("{{ strftime_now('%Y-%m-%d') }}") in {today, time.strftime("%Y-%m-%d")}


def test_files_come_in_order(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert from_folder(tmp_path).render([USER]) == "plain"
    assert from_folder(tmp_path).render([USER], tools=[{}]) == "tools"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert from_folder(tmp_path).render([USER]) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja é")
    assert from_folder(tmp_path).render([USER]) == "jinja é"


def from_folder(folder: Path) -> ChatTemplate:
    template = ChatTemplate.from_folder(folder)
    assert template is not None
    return template


@pytest.mark.parametrize(
    "value", [1, {}, [1], [{"name": "default"}], [{"name": 1, "template": ""}]]
)
def test_a_field_that_is_no_template_is_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template: expected"):
        ChatTemplate.from_folder(tmp_path)


def test_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    value = {"chat_template": [{"name": "rag", "template": ""}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=r"default.*\['rag'\]"):
        ChatTemplate.from_folder(tmp_path)


@pytest.mark.parametrize(("data", "message"), [(b"\xff", "UTF-8"), (b"x" * 1_000_001, "bytes")])
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        ChatTemplate.from_folder(tmp_path)


def test_a_short_conversation_does_not_wait_for_a_long_one() -> None:
    template = SandboxedTemplate("{% for turn in turns %}{{ turn }}{% endfor %}", "test")
    started, ended = threading.Event(), threading.Event()

    def long_turns() -> Iterator[str]:
        started.set()
        ended.wait(10)
        yield "long"

    long = threading.Thread(target=template.render, args=({"turns": long_turns()},))
    long.start()
    assert started.wait(10)
    assert template.render({"turns": ["short"]}) == "short"
    assert long.is_alive(), "the short conversation waited for the long one"
    ended.set()
    long.join()
