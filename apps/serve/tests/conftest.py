"""Fixtures: servers in processes of their own, on ports that the system chooses."""

import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from tinyllm_qwen.testing import random_checkpoint, scripted_checkpoint
from tinyllm_serve.testing import Server

# The last message chooses the script. The template shows tools to the model, and switches reasoning
# off as Qwen3's template does.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.reasoning_content }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{{ messages[-1].content }}"
)
STRICT = (
    "{% for message in messages[1:] %}{% if message.role == 'system' %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
LONG = ['"Os', 'lo}"', "}}", "\n</tool_call>", "<|im_end|>"]
SCRIPTS = (
    ["#think", "<think>", "Hm.", "</think>", "\n\nIt is ", "so.", "<|im_end|>"],
    ["#call", "Let me see.\n", CALL, "\n<tool_call>", '{"name": "nothing"', "<|endoftext|>!"],
    ["#json", "{", '"a"', ":", "1", "}", "<|im_end|>"],
    ["#long", "<tool_call>", '\n{"name": ', '"weather", "arguments": {', '"city": ', *LONG],
    ["#rome", CALL.replace("Oslo", "Rome"), "<|im_end|>"],
)
XML_CALL = ["\n<function=weather>", "\n<parameter=city>", "\nOs", 'lo "x"', "\n</parameter>"]
XML_END = ["\n</function>", "\n</tool_call>", "<|im_end|>"]
XML_ITEMS = (
    "{# <function=name> #}"
    "{% for message in messages %}{% for call in message.tool_calls or [] %}"
    "{% for name, value in call.function.arguments | items %}{% endfor %}"
    "{% endfor %}{% endfor %}"
)
"""Lists the items of all arguments, as the templates of Qwen3-Coder and Qwen3.5 do."""

XML_SCRIPT = ["#xml", "Let me see.\n", "<tool_call>", *XML_CALL, *XML_END]


Start = Callable[..., Server]


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """Share one TLS context among all HTTP clients, which do not use it.

    `httpx.get` makes a client for each request, and reading the certificates takes 40 ms.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers that end with the test."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(Server(*options))


@pytest.fixture(scope="session")
def pico() -> Iterator[Server]:
    """A server with the built-in model."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model that generates `SCRIPTS`."""
    folder = tmp_path_factory.mktemp("models") / "scripted"
    following = {text: after for script in SCRIPTS for text, after in pairwise(script)}
    model = str(scripted_checkpoint(folder, following, TEMPLATE))
    # The last message must be the token that begins a script.
    with Server("--model", model, "--allow-special-tokens") as server:
        yield server


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server like `scripted`. Its template refuses a second system message, as Qwen3.5's does."""
    folder = tmp_path_factory.mktemp("models") / "strict"
    following = {text: after for script in SCRIPTS for text, after in pairwise(script)}
    model = str(scripted_checkpoint(folder, following, STRICT + TEMPLATE, context=16_384))
    with Server("--model", model, "--allow-special-tokens") as server:
        yield server


@pytest.fixture(scope="session")
def scripted_xml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model that generates `XML_SCRIPT`. Its template is one of the XML format."""
    folder = tmp_path_factory.mktemp("models") / "scripted-xml"
    template = XML_ITEMS + TEMPLATE
    model = str(scripted_checkpoint(folder, dict(pairwise(XML_SCRIPT)), template))
    with Server("--model", model, "--allow-special-tokens") as server:
        yield server


@pytest.fixture(scope="session")
def guarded() -> Iterator[Server]:
    """A server with two keys, an allowed origin, short bodies and short answers."""
    options = ("--allowed-origins", "https://a.example", "--max-body", "50000", "--max-tokens", "8")
    with Server(*options, TINYLLM_API_KEY="first second") as server:
        yield server


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that generates letters until its context of a million tokens is full."""
    folder = tmp_path_factory.mktemp("models") / "endless"
    return random_checkpoint(folder, TEMPLATE, context=1_000_000)


@pytest.fixture(scope="session")
def busy(endless: Path) -> Iterator[Server]:
    """A server with endless answers, which computes two of them at a time."""
    options = ("--max-tokens", "100000", "--kv-cache-memory", "0.2", "--max-num-seqs", "2")
    with Server("--model", str(endless), *options) as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Chromium without a window. Tests that ask for it are skipped where there is none."""
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("no Chromium with its chromedriver")
    options = ChromeOptions()
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=900,700",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with Chrome(options, ChromeService(driver)) as chrome:
        yield chrome
