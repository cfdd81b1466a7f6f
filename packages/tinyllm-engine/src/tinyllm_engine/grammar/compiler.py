"""The compiler that turns grammars into constraints on tokens."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import islice

from llguidance import LLMatcher, LLTokenizer
from tinyllm_qwen import Tokenizer

from tinyllm_engine.grammar.constraint import Constraint, Lexer
from tinyllm_engine.grammar.grammar import Grammar
from tinyllm_engine.grammar.json_schema import enforceable_schema
from tinyllm_engine.grammar.limits import (
    MATCHER_LIMITS,
    MAX_BYTES,
    MAX_SCHEMAS,
    check,
    embedded_schemas,
)
from tinyllm_engine.grammar.reasoning_prefix import ReasoningPrefix
from tinyllm_engine.grammar.vocabulary import token_bytes, token_tree

_WHITESPACE = r"( |\n {0,24})?"
"""White space between the tokens of JSON: one space, or a new line and its indentation. JSON allows
any amount of white space, and a small model may never stop writing it."""

_MAX_PREFIXES = 16
"""The largest number of reasoning prefixes in the cache. A server uses one or two."""

_MAX_REASON = 500
"""The most characters of a reason of llguidance in an error. Reasons quote the grammar."""

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: \[(.{1,500})\]")
"""The reason of llguidance for keywords that it does not implement."""

_UNENFORCED = re.compile(
    r"^\S.*(?: is not supported| are not disjoint|only supported when .*)$", re.MULTILINE
)
"""The line of a reason for what is valid, but not implemented. Indented lines quote the grammar."""


class CompiledGrammar:
    """A grammar in the form that makes constraints. Threads can share it.

    Attributes:
        lexer: the lexer that all its constraints share. Its memory is freed with the last of them.
    """

    def __init__(
        self, matcher: LLMatcher, prefix: ReasoningPrefix, vocab_size: int, name: str
    ) -> None:
        """Store the matcher before the first token; see `Constraint`."""
        self._matcher = matcher
        self._prefix = prefix
        self._vocab_size = vocab_size
        self._name = name
        self.lexer = Lexer()

    def constraint(self) -> Constraint:
        """Return the state of one request before its first token. This takes under 1 ms."""
        matcher = self._matcher.deep_copy()
        return Constraint(matcher, self._prefix, self._vocab_size, self._name, self.lexer)


class GrammarCompiler:
    """Compiles grammars for one vocabulary, with llguidance (github.com/guidance-ai/llguidance).

    The compiler recurses as deep as a grammar is long, and a stack overflow ends the process. Call
    `compile` in a thread with a large stack: see `GrammarWorker`.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Store the arguments; the vocabulary is read when it is first needed.

        Args:
            tokenizer: the tokenizer of the model, which knows the bytes of each token.
            vocab_size: V, the length of the logits, padding included.
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        # A checkpoint may name an end token that the model cannot generate.
        self._ends = sorted(each for each in tokenizer.eos_token_ids if each < vocab_size)
        # Requests with equal marks share a reasoning prefix, so its masks are computed only once.
        self._prefix = lru_cache(maxsize=_MAX_PREFIXES)(self._make_prefix)

    def read_vocabulary(self) -> None:
        """Sort the vocabulary into a tree now, which the first `compile` does otherwise."""
        if self._ends:
            _ = self._tree

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar.

        Raises:
            ValueError: if the grammar exceeds a limit of `limits`, or is not valid, with the reason
                of llguidance, or if the tokenizer has no end token.
        """
        if not self._ends:
            raise ValueError(
                f"{grammar.name}: expected a tokenizer with an end token, got none: use another "
                "tokenizer"
            )
        matcher = self._matcher(grammar)
        matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(
                f"{grammar.name}: expected one that allows a text, got none: make it less strict"
            )
        prefix = self._prefix(grammar.after or "", grammar.opening if grammar.after else "")
        return CompiledGrammar(matcher, prefix, self._vocab_size, grammar.name)

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        """Return the matcher of a grammar.

        Raises:
            ValueError: if the grammar is not valid.
        """
        reason = ""
        try:
            check(grammar)
            matcher = LLMatcher(self._tree, _rules(grammar), log_level=0, limits=MATCHER_LIMITS)
            if not matcher.is_error():
                return matcher
            reason = matcher.get_error()
        except (ValueError, RecursionError) as error:
            reason = str(error)
        for part in _parts(grammar):
            self._matcher(part)  # raises the error of the part at fault, by its name
        raise _invalid(grammar, reason)

    def _make_prefix(self, mark: str, opening: str) -> ReasoningPrefix:
        return ReasoningPrefix(mark, self._words, opening)

    @cached_property
    def _words(self) -> list[bytes]:
        return token_bytes(self._tokenizer, self._vocab_size)

    @cached_property
    def _tree(self) -> LLTokenizer:
        return token_tree(self._tokenizer, self._words, self._ends)


def _invalid(grammar: Grammar, reason: str) -> ValueError:
    if keywords := _UNIMPLEMENTED.search(reason):
        found = keywords[1].replace('"', "")
        return ValueError(
            f"{grammar.name}: expected keywords of JSON schemas that can be enforced, got {found}: "
            "remove it, and check it in your program"
        )
    if len(reason) > _MAX_REASON:
        reason = f"{reason[:_MAX_REASON]} ..."
    if _UNENFORCED.search(reason):
        return ValueError(
            f"{grammar.name}: expected a {grammar.kind} that can be enforced, got another one: "
            f"simplify it: {reason}"
        )
    return ValueError(f"{grammar.name}: not a valid {grammar.kind}: {reason}")


def _parts(grammar: Grammar) -> Iterator[Grammar]:
    """Yield the parts of a grammar that can be compiled alone, to find the part at fault.

    These are the parts of a union, and the JSON schemas of Lark rules with a name. They are no
    more, and not longer, than those of a grammar within its limits.
    """
    yield from grammar.parts
    if len(grammar.text.encode()) > MAX_BYTES:
        return
    names = dict(grammar.rule_names)
    schemas = (
        Grammar("json_schema", json.dumps(schema), name=name)
        for line in grammar.text.splitlines()
        if (name := _name_of(line.partition(":")[0], names))
        for schema in embedded_schemas(line)
    )
    yield from islice(schemas, MAX_SCHEMAS)


def _name_of(rule: str, names: Mapping[str, str]) -> str | None:
    """Return the name of a rule, or of the rule that it belongs to."""
    return names.get(rule) or names.get(rule.rpartition("_")[0])


def _rules(grammar: Grammar) -> str:
    """Return the grammar in the JSON format of llguidance; Lark rules are returned unchanged."""
    match grammar.kind:
        case "json_schema":
            # Parse the schema here, because llguidance inserts an unchecked text into its JSON.
            schema = json.loads(grammar.text)
            if isinstance(schema, dict):
                schema = enforceable_schema(schema)
            return LLMatcher.grammar_from_json_schema(
                schema, {"whitespace_pattern": _WHITESPACE, "coerce_one_of": True}
            )
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)
        case "union":
            names = [f"part_{index}" for index in range(len(grammar.parts))]
            start = {"lark_grammar": f"start: {' | '.join(f'@{name}' for name in names)}"}
            rules = [
                _rules_of_part(part) | {"name": name}
                for name, part in zip(names, grammar.parts, strict=True)
            ]
            return json.dumps({"grammars": [start, *rules]})


def _rules_of_part(grammar: Grammar) -> dict[str, object]:
    """Return a part of a union as an entry of llguidance's list of grammars."""
    rules = _rules(grammar)
    if grammar.kind == "lark":
        return {"lark_grammar": rules}
    entry: dict[str, object] = json.loads(rules)["grammars"][0]
    return entry
