"""Prints the files and functions that one token passes through, for docs/map.md.

    uv run python tools/walk.py

Three calls are traced, on pico with the reference ops: the encoding of a conversation, the step of
`generate` that decodes one token in the middle of a text, and a step of the engine that decodes two
requests. The step of `generate` is traced with a random Qwen3.5 as well. Functions of MLX and of
the standard library are not counted, nor are comprehensions and the import of a module.
Constructors of dataclasses are counted.
"""

import gc
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from tinyllm_ops import REFERENCE
from tinyllm_qwen import Tokenizer, generate, load
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.testing.hybrid import SHAPES, hybrid_checkpoint

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "map.md"
PROMPT = "Files of a prompt"
TOKEN, STEP = "Files of one decoded token", "Files of an engine step"
HYBRID = "Models with recurrent layers"
_PACKAGE = re.compile(r"/(?:packages|apps)/[\w-]+/src/(tinyllm_\w+/.+\.py)$")
_UNNAMED = re.compile(r"<(?:listcomp|genexpr|setcomp|dictcomp|module)>$")
_WARM_UP = 8  # steps before the trace, in which lazy properties are computed

Walk = Mapping[str, set[str]]
"""Qualified names of functions, by the file that defines them, such as tinyllm_layers/mlp.py."""


def trace(call: Callable[[], object]) -> Walk:
    """Record the functions of our packages that a call enters."""
    found: dict[str, set[str]] = {}

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        file, name = _definition(frame) if event == "call" else ("", "")
        match = _PACKAGE.search(file)
        if match is not None and not _UNNAMED.search(name):
            found.setdefault(match[1], set()).add(name)

    gc.collect()  # or the trace may have the end of another call's generator
    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def _definition(frame: FrameType) -> tuple[str, str]:
    """Return the file and the qualified name of the function of a frame.

    The methods that `dataclass` makes have no file: they belong to the file of their class.
    """
    code = frame.f_code
    if code.co_filename != "<string>" or not code.co_argcount:
        return code.co_filename, code.co_qualname
    for each in type(frame.f_locals[code.co_varnames[0]]).__mro__:
        method = vars(each).get(code.co_name)
        if callable(method) and getattr(inspect.unwrap(method), "__code__", None) is code:
            file = sys.modules[each.__module__].__file__ or ""
            return file, f"{each.__qualname__}.{code.co_name}"
    return "", ""


def prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    """Return the tokens of a conversation that begins with a question."""
    return tokenizer.apply_chat_template([{"role": "user", "content": question}])


def prompt_walk() -> Walk:
    """Trace the encoding of a conversation."""
    _, tokenizer = load("pico", ops=REFERENCE)
    prompt(tokenizer, "what is a token?")  # compiles the template
    return trace(lambda: prompt(tokenizer, "what does rmsnorm do?"))


def token_walk() -> Walk:
    """Trace the step of `generate` that decodes one token."""
    return _token_walk(*load("pico", ops=REFERENCE))


def hybrid_walk() -> Walk:
    """Trace the step of `generate` that decodes one token with a random Qwen3.5."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = hybrid_checkpoint(Path(folder), SHAPES["tiny"], files="mlx")
        return _token_walk(*load(checkpoint, ops=REFERENCE))


def _token_walk(model: LanguageModel, tokenizer: Tokenizer) -> Walk:
    pieces = generate(model, tokenizer, prompt(tokenizer, "what does rmsnorm do?"))
    for _ in range(_WARM_UP):
        next(pieces)
    walk = trace(lambda: next(pieces))
    pieces.close()
    return walk


def step_walk() -> Walk:
    """Trace a step of the engine that decodes two requests."""
    from tinyllm_engine import Engine, EngineSettings, Request  # not needed for a single token

    model, tokenizer = load("pico", ops=REFERENCE)
    engine = Engine(model, tokenizer, EngineSettings(max_num_seqs=2))
    questions = ("what does rmsnorm do?", "what is a kv cache?")
    for question in questions:
        engine.add(Request(prompt(tokenizer, question), 100))
    for _ in range(_WARM_UP):
        made = engine.step()
    walk = trace(lambda: made.extend(engine.step()))
    if len(made) != 2 * len(questions):
        raise RuntimeError(f"step: expected a token of each request, got {len(made)} in two steps")
    return walk


def listed(heading: str, page: Path = PAGE) -> list[str]:
    """List the files of a section of docs/map.md, whose items begin with a file in backticks.

    Raises:
        ValueError: if the page has no such section.
    """
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for section in sections:
        if section.startswith(f"{heading}\n"):
            return re.findall(r"^- `([\w/]+\.py)`", section, re.MULTILINE)
    raise ValueError(f"{page}: expected a section `## {heading}`, found none")


def main() -> None:
    """Print the walks."""
    walks = {PROMPT: prompt_walk, TOKEN: token_walk, STEP: step_walk, HYBRID: hybrid_walk}
    for heading, trace_walk in walks.items():
        walk = trace_walk()
        print(f"\n{heading}:")
        for file in sorted(walk):
            print(f"{file}: {', '.join(sorted(walk[file]))}")
        print(f"{len(walk)} files, {sum(map(len, walk.values()))} functions")


if __name__ == "__main__":
    main()
