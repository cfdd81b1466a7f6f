"""Hostile chat templates: stopped or refused, each in bounded time and memory.

A separate process renders them. It may allocate 256 MB, and is killed after 300 s.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from jinja2 import Environment
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.text.chat_template import ChatTemplate

pytestmark = pytest.mark.exhaustive

S = "{% set s = 'ab' * 600000 %}"
GROW = "{%% set n = namespace(x=1) %%}{%% for i in range(60) %%}{%% set n.x = %s %%}{%% endfor %%}"
LOOP = "{%% for i in range(99999) %%}{%% if %s %%}{%% endif %%}{%% endfor %%}"

TOO_MUCH = {
    "a text times a number": "{{ 'x' * 10**12 }}",
    "a list times a number": "{{ 10**12 * [1] }}",
    "a long range": "{{ range(10**12) | list }}",
    "nested ranges": LOOP % "range(99999) | sum",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}"
    "{% endif %}{% endmacro %}{{ f(60) }}",
    "a loop that recurses": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "percent": "{{ '%2000000000d' % 1 }}",
    "percent with a star": "{{ '%*d' % (2000000000, 1) }}",
    "percent with a name": S + "{{ ('%(k)s' * 10000) % {'k': s} }}",
    "the filter format": "{{ '%2000000000d' | format(1) }}",
    "the method format": "{{ '{:2000000000}'.format(1) }}",
    "the method format, nested": "{{ '{:{}}'.format(1, 2000000000) }}",
    "the method format_map": "{{ '{a:2000000000}'.format_map({'a': 1}) }}",
    "center": "{{ 'x' | center(10**10) }}",
    "the method center": "{{ 'x'.center(10**10) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "tabs": "{{ '\\t'.expandtabs(10**9) }}",
    "indent": "{{ 'x\\ny' | indent(10**10) }}",
    "indent by a text": S + "{{ ('\\n' * 9999) | indent(s) }}",
    "replace": S + "{{ s | replace('', s) }}",
    "the method replace": S + "{{ s.replace('', s) }}",
    "join": S + "{{ ([1] * 9999) | join(s) }}",
    "the method join": S + "{{ s.join(['x'] * 9999) }}",
    "the method join of a generator": S + "{{ ''.join(range(9999) | map('replace', '', s)) }}",
    "batch": "{{ [1] | batch(10**10, 1) | list }}",
    "slice": "{{ [1] | slice(10**10) | list }}",
    "round": "{{ 1 | round(10**9, 'ceil') }}",
    "sum of lists": "{{ ([[1]] * 99999) | sum(start=[]) }}",
    "tojson with an indent": "{{ [1] | tojson(indent=10**10) }}",
    "tojson with long separators": S + "{{ ([1] * 9999) | tojson(separators=(s, s)) }}",
    "title": S + "{{ s | title }}",
    "sort of a list": "{% set s = [1] * 200000 %}{% if s | sort %}{% endif %}",
    "unique": "{% set s = 'ab' * 200000 %}{% if s | unique | list %}{% endif %}",
    "the largest character": S + "{{ s | max }}",
    "the least character": S + "{{ s | min }}",
    "a filter block": "{% filter center(10**10) %}x{% endfilter %}",
    "a filter by name": "{{ ['x'] | map('center', 10**10) | list }}",
    "lists of lists": GROW % "[n.x, n.x]" + "{{ n.x }}",
    "tuples of tuples": GROW % "(n.x, n.x)" + "{{ {}[n.x] }}",
    "mappings of mappings": GROW % "{'a': n.x, 'b': n.x}" + "{{ n.x | tojson }}",
    "dicts of dicts": GROW % "dict(a=n.x, b=n.x)" + "{{ n.x == n.x }}",
    "cyclers of cyclers": GROW % "cycler(n.x, n.x).items" + "{{ n.x }}",
    "arguments of arguments": "{% macro m(d) %}{{ f(varargs[:2], varargs[2:], d) }}{% endmacro %}"
    "{% macro f(x, y, d) %}{% if d %}{{ m(d - 1, x, x, y, y) }}{% elif x == y %}{% endif %}"
    "{% endmacro %}{{ f(1, 1, 60) }}",
    "texts that double": GROW % "n.x ~ n.x" + "{{ n.x }}",
    "numbers that are squared": GROW.replace("x=1", "x=9") % "n.x * n.x",
    "a tower of powers": "{{ 9 ** (9 ** 9) }}",
    "a number in hexadecimal": "{{ ('f' * 1000000) | int(0, 16) }}",
    "one text written often": S + "{{ " + " ~ ".join(["s"] * 4000) + " }}",
    "a macro that writes one text often": S
    + "{% macro m() %}"
    + "{{ s }}" * 4000
    + "{% endmacro %}{{ m() }}",
    "a macro that writes its own text often": "{% macro m() %}{% for i in range(40000) %}"
    + "A" * 50000
    + "{% endfor %}{% endmacro %}{{ m() }}",
    "a block that is set": S
    + "{% set x %}{% for i in range(99999) %}{{ s }}{% endfor %}{% endset %}",
    "slices of a text": S + LOOP % "s[1:]",
    "slices of a list": "{% set l = range(99999) | list %}" + LOOP % "l[1:]",
    "comparisons": S + "{% set t = s ~ '' %}{% set u = s ~ '' %}" + LOOP % "t == u",
    "searches": S + LOOP % "'bb' in s",
    "tests": S + LOOP % "'bb' is in s",
    "counts": S + LOOP % "s.count('bb')",
    "capitals": S + LOOP % "s | upper",
    "pieces": "{% set s = 'a ' * 4000000 %}{{ s.split() | length }}",
    "characters": "{% set s = 'ab' * 4000000 %}{{ s | list | length }}",
    "escapes": "{% set s = '\\U000e0001' * 2000000 %}{{ ([s] * 12) | upper }}",
    "escapes in JSON": "{% set s = '\\x00' * 4000000 %}{{ [s, s, s, s] | tojson }}",
    "a date of a million parts": "{{ strftime_now('%c' * 1000000) }}",
    "a power of floats": "{{ 9.0 ** 100000 }}",
    "a text with markup": "{% autoescape true %}{{ ('x' | safe) * 10**12 }}{% endautoescape %}",
}
INTERNALS = {
    text: "{{ " + text + " }}"
    for text in (
        "''.__class__",
        "''['__class__']",
        "'' | attr('__class__')",
        "'' | attr('__cla' ~ 'ss__')",
        "'{0.__class__}'.format(1)",
        "'{0[__class__]}'.format(1)",
        "'{a.__class__}'.format_map({'a': 1})",
        "('{0.__class__}' | attr('format'))(1)",
        "[''] | map(attribute='__class__') | list",
        "[''] | selectattr('__class__') | list",
        "['', ''] | sort(attribute='__class__')",
        "[''] | groupby('__class__')",
        "[''] | sum(attribute='__class__')",
        "[''] | join(attribute='__class__')",
        "nothing.__class__",
        "cycler.__init__.__globals__",
        "raise_exception.__globals__",
        "self._TemplateReference__context",
        "namespace(__html__=1)",
        "dict.mro()",
        "messages.append(1)",
        "messages[0].clear()",
        "'x'.encode('punycode')",
        "'x'.translate({})",
        "(1).to_bytes(10**10)",
    )
}
BROKEN = {
    "an open block": "{% if x %}",
    "a filter that is not there": "{{ x | urlize }}",
    "a slow filter": "{{ ('<!--' * 100000) | striptags }}",
    "a deep expression": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "deep blocks": "{% if x %}" * 3000 + "{% endif %}" * 3000,
    "a long chain": "{{ x" + "|e" * 40000 + " }}",
    "a long sum": "{{ " + "1+" * 40000 + "1 }}",
    "a long number": "{{ " + "9" * 9999 + " }}",
}
CASES = {"stopped": TOO_MUCH, "do not trust": INTERNALS, "broken|nested too deeply": BROKEN}

PROGRAM = """
import json, resource, sys, time
from tinyllm_qwen.text.sandbox import meter
from tinyllm_qwen.text.chat_template import ChatTemplate
ChatTemplate({"default": ""}).render([{}])
if sys.platform == "linux":
    limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
# An eighth of the allowance: the same stops, sooner.
meter.STEPS //= 8
meter.SECONDS /= 8
for name, source in json.load(sys.stdin).items():
    start = time.thread_time()
    try:
        text = ChatTemplate({"default": source}).render([{"role": "user", "content": "hi"}])
        outcome = f"rendered {text[:80]!r}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps([name, outcome[:500], time.thread_time() - start]), flush=True)
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, float]]:
    """Return the error of every template and its time in seconds."""
    every = {name: source for cases in CASES.values() for name, source in cases.items()}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(every),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == len(every), f"ended by {list(every)[len(lines)]!r}: {result.stderr[-500:]}"
    return {name: (outcome, seconds) for name, outcome, seconds in lines}


@pytest.mark.parametrize("name", [name for cases in CASES.values() for name in cases])
def test_a_hostile_template_is_one_error_in_bounded_time_and_memory(
    name: str, outcomes: dict[str, tuple[str, float]]
) -> None:
    expected = next(words for words, cases in CASES.items() if name in cases)
    outcome, seconds = outcomes[name]
    assert outcome.startswith("CheckpointError: ")
    assert any(words in outcome for words in expected.split("|"))
    assert seconds < 10
    # A MemoryError has no text. It would mean that no limit of ours stopped the template.
    assert "stopped ()" not in outcome


def test_a_namespace_that_holds_itself_can_be_printed() -> None:
    source = "{% set n = namespace() %}{% set n.x = [n, n] %}{{ n.x }}"
    text = ChatTemplate({"default": source}).render([{"role": "user", "content": ""}])
    assert text == "[<Namespace>, <Namespace>]"


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_a_template_of_a_hundred_megabytes_is_refused_unread(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(100_000_001)
    with pytest.raises(CheckpointError, match=r"expected at most 100000\d* bytes, got 100000001"):
        ChatTemplate.from_folder(tmp_path)


@pytest.mark.parametrize("value", ["x" * 100_001, [{"name": "default", "template": "x" * 100_001}]])
def test_a_long_template_inside_a_config_is_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(CheckpointError, match=r"at most 100000 characters, got 100001: take"):
        ChatTemplate.from_folder(tmp_path)


@pytest.mark.parametrize("data", ["é".encode("latin-1"), "x".encode("utf-16"), b"\xed\xa0\x80"])
def test_a_template_in_another_encoding_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(data)
    with pytest.raises(CheckpointError, match="not UTF-8 text"):
        ChatTemplate.from_folder(tmp_path)


HARMLESS = [
    "{{ '%s has %d' | format('x', 2) }}{{ '%05.1f%%' % 2.25 }}{{ '%(a)s' % {'a': 1} }}",
    "{{ '{0:>4}|{a!r}|{{}}'.format('x', a='y') }}{{ '{a}'.format_map({'a': 1}) }}",
    "{{ 'a b  c'.split() | join('-') }}{{ [{'a': 1}, {'a': 2}] | join(', ', attribute='a') }}",
    "{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}{{ [[1], [2]] | sum(start=[]) }}",
    "{{ 'a\\nb' | indent(2) }}|{{ 'a\\nb' | indent('> ', first=true) }}",
    "{{ 'aXbX' | replace('X', '-', 1) }}{{ 'aX'.replace('X', '') }}{{ '-'.join(['a', 'b']) }}",
    "{{ 2.567 | round(1) }} {{ 'x' | center(5) }}|{{ 'x'.ljust(3) }}|{{ '7'.zfill(3) }}",
    "{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}{{ 'ab' | list }}",
    "{{ {'b': [1, 'é'], 'a': none} | tojson(indent=2, sort_keys=true) }}{{ 'é<' | tojson }}",
    "{{ [3, 1][::-1] }}{{ 'abc'[1:] }}{{ (1, 2)[0] }}{{ {'a': 2}['a'] }}{{ [1][5] }}",
    "{{ 7 % 4 }} {{ 2 ** 10 }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 1 ~ 'x' ~ [none] }}",
    "{% for a, b in {'x': 1}.items() %}{{ a ~ b }}{{ loop.length }}{% endfor %}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ caller() }}{% endmacro %}"
    "{% call m(1, 2) %}c{% endcall %}",
    "{% set a, b = 1, [2] %}{{ a }}{{ b[0] }}{{ 1 if 'x' is in ['x'] else 0 }}{{ 1 < 2 <= 2 }}",
    "{% set x %}{{ 'b' }}c{% endset %}{% filter upper %}a{{ x }}{% endfilter %}"
    "{{ not x is defined }}",
]


@pytest.mark.parametrize("template", HARMLESS)
def test_metered_templates_render_as_in_jinja2(template: str) -> None:
    plain = Environment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    rendered = ChatTemplate({"default": template}).render([{"role": "user", "content": ""}])
    assert rendered == plain.from_string(template).render()
