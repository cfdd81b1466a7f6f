"""The compiler that turns grammars into constraints on tokens."""

from __future__ import annotations

import json
from functools import cached_property, lru_cache

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from tinyllm_qwen import Tokenizer

from tinyllm_engine.grammar.constraint import Constraint
from tinyllm_engine.grammar.grammar import Grammar
from tinyllm_engine.grammar.reasoning_prefix import ReasoningPrefix

_WHITESPACE = r"( |\n {0,24})?"
"""White space between the tokens of JSON: one space, or a new line and its indentation. JSON allows
any amount of white space, and a small model may never stop writing it."""

_MAX_PREFIXES = 16
"""The largest number of reasoning prefixes in the cache. A server uses one or two."""


class GrammarCompiler:
    """Compiles grammars for one vocabulary, with llguidance (github.com/guidance-ai/llguidance).

    The first call of `compile` also sorts the vocabulary into a tree, which takes about a second
    for 152,000 tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Store the arguments; the vocabulary is read by the first call of `compile`.

        Args:
            tokenizer: the tokenizer of the model, which knows the bytes of each token.
            vocab_size: V, the length of the logits, padding included.
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        # Requests with equal marks share a reasoning prefix, so its masks are computed only once.
        self._prefix = lru_cache(maxsize=_MAX_PREFIXES)(self._make_prefix)

    def compile(self, grammar: Grammar) -> Constraint:
        """Compile a grammar for one request.

        Raises:
            ValueError: if the grammar is not valid, with the reason of llguidance, or if the
                tokenizer has no end token.
        """
        if not self._tokenizer.eos_token_ids:
            raise ValueError(
                f"{grammar.name}: expected a tokenizer with an end token, got none: use another "
                "tokenizer"
            )
        try:
            matcher = LLMatcher(self._vocabulary, _rules(grammar), log_level=0)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{grammar.name}: not a valid {grammar.kind}: {error}") from error
        if matcher.is_error():
            reason = matcher.get_error()
            raise ValueError(f"{grammar.name}: not a valid {grammar.kind}: {reason}")
        matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(f"{grammar.name}: no text conforms to this {grammar.kind}")
        prefix = self._prefix(grammar.after or "", grammar.opening if grammar.after else "")
        return Constraint(matcher, prefix, self._vocab_size)

    def _make_prefix(self, mark: str, opening: str) -> ReasoningPrefix:
        return ReasoningPrefix(mark, self._words, opening)

    @cached_property
    def _words(self) -> list[bytes]:
        """The bytes of each of the V tokens; empty bytes for ids that only pad the vocabulary."""
        return [self._tokenizer.token_bytes(token) for token in range(self._vocab_size)]

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        ends = sorted(self._tokenizer.eos_token_ids)
        vocabulary = TokenizerWrapper(_Vocabulary(self._tokenizer, self._words))
        return LLTokenizer(vocabulary, eos_token=ends)


class _Vocabulary:
    """The vocabulary with the attribute names that llguidance expects of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, words: list[bytes]) -> None:
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = words
        self.special_token_ids = sorted(tokenizer.special_token_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


def _rules(grammar: Grammar) -> str:
    """Return the grammar in the JSON format of llguidance; Lark rules are returned unchanged."""
    match grammar.kind:
        case "json_schema":
            # Parse the schema here, because llguidance inserts an unchecked text into its JSON.
            return LLMatcher.grammar_from_json_schema(
                json.loads(grammar.text), {"whitespace_pattern": _WHITESPACE}
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
