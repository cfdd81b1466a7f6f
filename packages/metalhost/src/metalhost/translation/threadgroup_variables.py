"""Translation of threadgroup variables, which all threads of a group share.

threadgroup float tile[N], sum;

becomes, on the same line, references to memory that the runtime allocates for the group:

typedef float t_0[N]; SPACE t_0& tile = metal::threadgroup_variable<t_0>(0, "tile");
typedef float t_1; SPACE t_1& sum = metal::threadgroup_variable<t_1>(1, "sum");

A declaration left untranslated would give each thread its own variable, and the kernel would
compute wrong numbers silently. Every `threadgroup` in the text is therefore either part of a
pointer or reference type, or a declaration that is translated, or an error. The first two become
SPACE, a macro of the headers. The compiler does not know the word `threadgroup` itself, so a
`threadgroup` that a macro pastes together is an error too.
"""

from dataclasses import dataclass, field

from metalhost.text.problem import Problem
from metalhost.translation.tokens import TYPE_KEYWORDS, Token, outside_angles

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_SPECIFIER_ENDS = frozenset(";=[,(){}:>") | {"*", "&", "&&"}
_NAME_ENDS = frozenset("[=")
SPACE = "METAL_THREADGROUP"
"""Macro of the headers for the address space. It is empty in the unit to execute."""


@dataclass
class ThreadgroupTranslation:
    """Translation of the threadgroup variables in one part of a kernel's text.

    Attributes:
        part: name of the part, for problems.
        in_body: True for the body of the kernel, the only part that may declare such variables.
        problems: uses of `threadgroup` that are not supported.
    """

    part: str
    in_body: bool
    problems: list[Problem] = field(default_factory=list)
    _declared: int = 0

    def apply(self, tokens: list[Token]) -> list[Token]:
        """Return the tokens with all declarations translated."""
        result: list[Token] = []
        before = "{"  # text of the last code token
        statement: list[str] = []  # code tokens since the end of the last statement
        blocks: list[bool] = []  # for each open brace, True if it belongs to a type
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.kind == "directive" and "threadgroup" in _words(token.text):
                self._report(token, "'threadgroup' in a preprocessor directive")
            if token.text == "threadgroup" and token.kind == "word":
                end = self._declaration_end(tokens, at, before, in_type=any(blocks))
                if end is not None:
                    result.append(self._translate(tokens[at:end]))
                    at, before = end, ";"
                    continue
                token = Token("word", SPACE, token.line)
            result.append(token)
            at += 1
            if not token.is_code:
                continue
            if token.text == "{":
                blocks.append(
                    before != ")" and not TYPE_KEYWORDS.isdisjoint(outside_angles(statement))
                )
            elif token.text == "}" and blocks:
                blocks.pop()
            before = token.text
            if before in ("{", "}", ";"):
                statement.clear()
            else:
                statement.append(before)
        return result

    def _declaration_end(
        self, tokens: list[Token], at: int, before: str, *, in_type: bool
    ) -> int | None:
        """Return the index after the declaration's semicolon.

        Return None if the word is part of a pointer or reference type, or is not supported.
        """
        ending = _after_specifiers(tokens, at + 1)
        if ending in ("*", "&", "&&"):
            return None
        if (before == "<" and ending in (">", ",")) or (before == "," and ending == ">"):
            return None  # a template argument
        if before not in ("{", "}", ";") or ending not in (";", "=", "[", ","):
            self._report(tokens[at], "this use of 'threadgroup' is not supported")
            return None
        if in_type or not self.in_body:
            where = ", not as members" if in_type else ""
            message = f"threadgroup variables may be declared only in the body{where}"
            self._report(tokens[at], message)
            return None
        depth = 0
        for end in range(at, len(tokens)):
            text = tokens[end].text
            depth += (text in _OPEN) - (text in _CLOSE)
            if text == ";" and depth == 0:
                return end + 1
        self._report(tokens[at], "this declaration has no end")
        return None

    def _translate(self, tokens: list[Token]) -> Token:
        """Translate a declaration into one token that has the same number of lines."""
        if any(token.kind == "directive" for token in tokens):
            self._report(tokens[0], "a preprocessor directive within a threadgroup declaration")
        words = [token.text for token in tokens[1:-1] if token.is_code]
        first, *others = _split_declarators(words)
        name = next((i for i, text in enumerate(first) if text in _NAME_ENDS), len(first)) - 1
        specifiers, declarators = first[:name], [first[name:], *others]
        parts = [self._reference(tokens[0], specifiers, declarator) for declarator in declarators]
        lines = "\n" * sum(token.text.count("\n") for token in tokens)
        return Token("symbol", " ".join(parts) + lines, tokens[0].line)

    def _reference(self, at: Token, specifiers: list[str], declarator: list[str]) -> str:
        """Translate one variable. Its initializer is dropped, because a GPU does not run it."""
        if "=" in declarator:
            declarator = declarator[: declarator.index("=")]
        name, *dimensions = declarator or [""]
        array = not dimensions or (dimensions[0] == "[" and dimensions[-1] == "]")
        if not specifiers or not name.isidentifier() or not array:
            self._report(at, "this threadgroup declaration is not supported")
        number = self._declared
        self._declared += 1
        alias = f"metalhost_type_{number}"
        return (
            f"typedef {' '.join(specifiers)} {alias}{' '.join(dimensions)}; "
            f"{SPACE} {alias}& {name} = "
            f'metal::threadgroup_variable<{alias}>({number}, "{name}");'
        )

    def _report(self, token: Token, message: str) -> None:
        self.problems.append(Problem(self.part, token.line, message))


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def _after_specifiers(tokens: list[Token], start: int) -> str:
    """Return the first token after a type name, and skip template arguments."""
    depth = 0
    for token in tokens[start:]:
        if not token.is_code:
            continue
        if depth == 0 and token.text in _SPECIFIER_ENDS:
            return token.text
        depth += (token.text == "<") - (token.text == ">")
    return ""


def _split_declarators(words: list[str]) -> list[list[str]]:
    """Split a declaration at its commas. The first part begins with the specifiers."""
    parts: list[list[str]] = [[]]
    depth = 0
    dimensions = False  # in array bounds, < is a comparison and does not open template arguments
    for text in words:
        if text == "," and depth == 0:
            parts.append([])
            continue
        dimensions = dimensions or text in _NAME_ENDS
        brackets = ("([{", ")]}") if dimensions or len(parts) > 1 else ("([{<", ")]}>")
        depth += (text in brackets[0]) - (text in brackets[1])
        parts[-1].append(text)
    return parts
