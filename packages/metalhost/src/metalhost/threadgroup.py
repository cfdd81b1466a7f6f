"""Threadgroup variables: one for all threads of a group, where a host compiler has one for each.

threadgroup float tile[N], sum;

becomes references to memory that the runtime keeps for the group, on the same line:

typedef float tile_t[N]; SPACE tile_t& tile = metal::threadgroup_variable<tile_t>(0, "tile");
typedef float sum_t; SPACE sum_t& sum = metal::threadgroup_variable<sum_t>(1, "sum");

A declaration that was overlooked would become a variable of each thread, and the kernel would be
wrong without a word. So every `threadgroup` in the text is either known to be harmless (it
qualifies what a pointer or a reference points to), or translated, or refused. Only those that were
understood become SPACE, which the headers know; `threadgroup` itself is unknown to the compiler, so
that one that a macro puts together is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metalhost.problem import Problem
from metalhost.tokens import Token

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_ENDS_SPECIFIERS = frozenset(";=[,(){}:>") | {"*", "&", "&&"}
_ENDS_NAME = frozenset("[=")
_TYPES = frozenset({"struct", "class", "union"})
SPACE = "METAL_THREADGROUP"
"""What the headers call the address space: a macro, empty for execution."""


@dataclass
class ThreadgroupTranslation:
    """Translates the declarations of one text.

    Attributes:
        part: the name of the text, for problems.
        in_body: whether it is the kernel's body, the one place for such variables.
        problems: what was refused.
    """

    part: str
    in_body: bool
    problems: list[Problem] = field(default_factory=list)
    _declared: int = 0

    def apply(self, tokens: list[Token]) -> list[Token]:
        """The tokens with all declarations translated."""
        done: list[Token] = []
        before = "{"  # the last token that counts
        statement: list[str] = []  # what counts since the last one ended
        blocks: list[bool] = []  # the braces that are open: whether they are those of a type
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.kind == "directive" and "threadgroup" in _words(token.text):
                self._refuse(token, "'threadgroup' in a preprocessor directive")
            if token.text == "threadgroup" and token.kind == "word":
                end = self._declaration_end(tokens, at, before, in_type=any(blocks))
                if end is not None:
                    done.append(self._translate(tokens[at:end]))
                    at, before = end, ";"
                    continue
                token = Token("word", SPACE, token.line)
            done.append(token)
            at += 1
            if not token.counts:
                continue
            if token.text == "{":
                blocks.append(before != ")" and not _TYPES.isdisjoint(_outside_angles(statement)))
            elif token.text == "}" and blocks:
                blocks.pop()
            before = token.text
            if before in ("{", "}", ";"):
                statement.clear()
            else:
                statement.append(before)
        return done

    def _declaration_end(
        self, tokens: list[Token], at: int, before: str, *, in_type: bool
    ) -> int | None:
        """The index after a declaration's semicolon; None if the word is harmless, or refused."""
        ending = _after_specifiers(tokens, at + 1)
        if ending in ("*", "&", "&&"):
            return None
        if (before == "<" and ending in (">", ",")) or (before == "," and ending == ">"):
            return None  # a template argument
        if before not in ("{", "}", ";") or ending not in (";", "=", "[", ","):
            self._refuse(tokens[at], "this use of 'threadgroup' is not understood")
            return None
        if in_type or not self.in_body:
            where = ", not as members" if in_type else ""
            message = f"threadgroup variables may be declared in the body alone{where}"
            self._refuse(tokens[at], message)
            return None
        depth = 0
        for end in range(at, len(tokens)):
            text = tokens[end].text
            depth += (text in _OPEN) - (text in _CLOSE)
            if text == ";" and depth == 0:
                return end + 1
        self._refuse(tokens[at], "this declaration has no end")
        return None

    def _translate(self, tokens: list[Token]) -> Token:
        """A declaration, from `threadgroup` to the semicolon, as one token of as many lines."""
        if any(token.kind == "directive" for token in tokens):
            self._refuse(tokens[0], "a preprocessor directive within a threadgroup declaration")
        words = [token.text for token in tokens[1:-1] if token.counts]
        first, *others = _split(words)
        name = next((i for i, text in enumerate(first) if text in _ENDS_NAME), len(first)) - 1
        specifiers, declarators = first[:name], [first[name:], *others]
        parts = [self._reference(tokens[0], specifiers, declarator) for declarator in declarators]
        lines = "\n" * sum(token.text.count("\n") for token in tokens)
        return Token("symbol", " ".join(parts) + lines, tokens[0].line)

    def _reference(self, at: Token, specifiers: list[str], declarator: list[str]) -> str:
        """One variable. What it is initialised with is dropped: no GPU would do it once."""
        if "=" in declarator:
            declarator = declarator[: declarator.index("=")]
        name, *dimensions = declarator or [""]
        array = not dimensions or (dimensions[0] == "[" and dimensions[-1] == "]")
        if not specifiers or not name.isidentifier() or not array:
            self._refuse(at, "this threadgroup declaration is not understood")
        number = self._declared
        self._declared += 1
        alias = f"metalhost_type_{number}"
        return (
            f"typedef {' '.join(specifiers)} {alias}{' '.join(dimensions)}; "
            f"{SPACE} {alias}& {name} = "
            f'metal::threadgroup_variable<{alias}>({number}, "{name}");'
        )

    def _refuse(self, token: Token, message: str) -> None:
        self.problems.append(Problem(self.part, token.line, message))


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def _after_specifiers(tokens: list[Token], start: int) -> str:
    """The first token that is no part of a type's name; what stands between < and > is skipped."""
    depth = 0
    for token in tokens[start:]:
        if not token.counts:
            continue
        if depth == 0 and token.text in _ENDS_SPECIFIERS:
            return token.text
        depth += (token.text == "<") - (token.text == ">")
    return ""


def _outside_angles(words: list[str]) -> list[str]:
    """Without the parameters of templates, which may be classes."""
    found, depth = [], 0
    for text in words:
        depth += (text == "<") - (text == ">")
        if depth == 0:
            found.append(text)
    return found


def _split(words: list[str]) -> list[list[str]]:
    """The declarators of a declaration, of which the first has the specifiers before it."""
    parts: list[list[str]] = [[]]
    depth = 0
    dimensions = False  # in an array's bounds < is smaller, not the begin of template arguments
    for text in words:
        if text == "," and depth == 0:
            parts.append([])
            continue
        dimensions = dimensions or text in _ENDS_NAME
        brackets = ("([{", ")]}") if dimensions or len(parts) > 1 else ("([{<", ")]}>")
        depth += (text in brackets[0]) - (text in brackets[1])
        parts[-1].append(text)
    return parts
