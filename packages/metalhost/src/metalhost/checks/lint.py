"""Lint for constructs that C++ compilers accept and Metal rejects, found by their tokens."""

import functools
import re
from collections.abc import Iterator, Set

from metalhost.checks import static_storage
from metalhost.text.problem import Problem
from metalhost.translation.tokens import Token, tokenize

_NO_LIBC = "Metal has no C library"
_FORBIDDEN = {
    "double": "Metal has no double",
    "std": "Metal has no namespace std; its library is in namespace metal",
    "new": "Metal allocates no memory",
    "delete": "Metal allocates no memory",
    "throw": "Metal has no exceptions",
    "try": "Metal has no exceptions",
    "catch": "Metal has no exceptions",
    "virtual": "Metal has no virtual functions",
    "typeid": "Metal has no run-time types",
    "dynamic_cast": "Metal has no run-time types",
    "thread_local": "Metal has no thread_local",
    "goto": "Metal has no goto",
    "asm": "Metal has no inline assembly",
    "concept": "this is C++20, and Metal is C++14",
    "requires": "this is C++20, and Metal is C++14",
    "consteval": "this is C++20, and Metal is C++14",
    "constinit": "this is C++20, and Metal is C++14",
    "co_await": "this is C++20, and Metal is C++14",
    "co_yield": "this is C++20, and Metal is C++14",
    "co_return": "this is C++20, and Metal is C++14",
    "metalhost": "this name is reserved for the host runtime",
}
_NO_FUNCTIONS = {
    **dict.fromkeys(("printf", "memcpy", "memset", "malloc", "free", "assert"), _NO_LIBC),
    **{
        f"{name}f": f"Metal calls it {name}" for name in ("exp", "log", "sqrt", "pow", "sin", "cos")
    },
    **{f"f{name}f": f"Metal calls it f{name}" for name in ("abs", "max", "min", "ma", "mod")},
    **dict.fromkeys(("erf", "expm1"), "the library of Metal has no such function"),
}
_SPACES = frozenset({"device", "constant", "threadgroup", "thread"})
_QUALIFIERS = frozenset({"const", "volatile", "constexpr", "static", "inline"})
_TYPE = re.compile(
    r"(?:void|auto|size_t|u?int(?:8|16|32|64)_t|b?float16_t"
    r"|(?:bool|u?char|u?short|u?int|u?long|half|b?float)[234]?)"
)
_TYPE_PARAMETER = re.compile(r"\b(?:typename|class)\s+(\w+)\s*[,>=]")


@functools.lru_cache(maxsize=256)
def lint(header: str, source: str, signature: str = "") -> tuple[Problem, ...]:
    """Return the problems of a kernel's text, in order.

    Args:
        header: text before the kernel.
        source: body of the kernel.
        signature: generated text between them, which declares the template parameters.
    """
    own = _own_functions(header)
    # A template parameter of the header is not visible in the body, where it may name a constant.
    in_header, in_source = (set(_TYPE_PARAMETER.findall(text)) for text in (header, signature))
    return (
        *_lint_part("header", header, in_header, own),
        *_lint_part("source", source, in_source, own),
    )


def _own_functions(text: str) -> set[str]:
    """Return the functions and macros that a text defines."""
    own = set(static_storage.DEFINED.findall(text))
    words: list[str] = []  # for each open parenthesis, the word before it
    closed = before = ""
    for token in tokenize(text):
        if not token.is_code:
            continue
        if token.text == "(":
            words.append(before)
        elif token.text == ")" and words:
            closed = words.pop()
        elif token.text == "{" and before in (")", "const", "thread"):
            own.add(closed)
        before = token.text
    return own


def _lint_part(part: str, text: str, types: Set[str], own: Set[str]) -> Iterator[Problem]:
    """Yield the problems of a part.

    Args:
        part: `"header"` or `"source"`.
        text: text of the part.
        types: template parameters of the part that are types.
        own: functions that the kernel defines itself.
    """
    lines = text.split("\n")
    # Directives are skipped, because the compiler checks a macro where it is expanded.
    tokens = [token for token in tokenize(text) if token.is_code and token.kind != "string"]
    for at, token in enumerate(tokens):
        message = _message(tokens, at, types, own)
        if message:
            yield Problem(part, token.line, message, lines[token.line - 1])
    for token in static_storage.static_variables(text, in_function=part == "source"):
        yield Problem(part, token.line, static_storage.MESSAGE, lines[token.line - 1])


def _message(tokens: list[Token], at: int, types: Set[str], own: Set[str]) -> str:
    """Return the problem at a token, or an empty string."""
    token = tokens[at]
    before = tokens[at - 1].text if at else "{"
    after = tokens[at + 1].text if at + 1 < len(tokens) else ""
    if before not in (".", "->"):
        if token.text in _FORBIDDEN:
            return f"'{token.text}': {_FORBIDDEN[token.text]}"
        if token.text in _NO_FUNCTIONS and token.text not in own and after == "(":
            return f"'{token.text}': {_NO_FUNCTIONS[token.text]}"
    if token.text == "[" and _is_lambda(tokens, at, before):
        return "a lambda, which only Metal 4 and later support"
    if token.text in ("*", "&") and _is_unqualified_pointer(tokens, at, types):
        kind = "pointer" if token.text == "*" else "reference"
        return f"a {kind} without an address space: device, constant, threadgroup or thread"
    return ""


def _is_lambda(tokens: list[Token], at: int, before: str) -> bool:
    """Return True if a `[` in the place of an operand opens a capture list."""
    if before in ("[", "]", ")") or tokens[at + 1 : at + 2] == [] or tokens[at + 1].text == "[":
        return False
    follows_operand = at > 0 and (tokens[at - 1].kind in ("word", "number"))
    if follows_operand and before != "return":
        return False
    closing = next((i for i in range(at, len(tokens)) if tokens[i].text == "]"), len(tokens) - 1)
    return tokens[min(closing + 1, len(tokens) - 1)].text in ("(", "{")


def _is_unqualified_pointer(tokens: list[Token], at: int, parameters: Set[str]) -> bool:
    """Return True for `T* name` at the start of a declaration, without an address space."""
    named = at + 2 < len(tokens) and tokens[at + 1].kind == "word"
    if not named or tokens[at + 2].text not in (";", ",", ")", "=", "[", "("):
        return False
    start = at - 1
    words: list[str] = []
    while start >= 0 and tokens[start].kind == "word":
        words.append(tokens[start].text)
        start -= 1
    if not words or _SPACES & set(words):
        return False
    types = [word for word in words if word not in _QUALIFIERS]
    before = tokens[start].text if start >= 0 else "{"
    begins = before in ("{", "}", ";", "(", ",", "<")
    if not begins or len(types) != 1:
        return False
    return types[0] in parameters or _TYPE.fullmatch(types[0]) is not None
