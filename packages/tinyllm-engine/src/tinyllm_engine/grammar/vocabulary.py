"""The vocabulary of a tokenizer, sorted into the tree that llguidance searches."""

from llguidance import LLTokenizer, TokenizerWrapper
from tinyllm_qwen import Tokenizer

MAX_TOKEN_BYTES = 1024
"""The most bytes of a token. llguidance panics at a longer one."""


def token_bytes(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Return the bytes of each of the V tokens; empty bytes for ids that pad the vocabulary."""
    return [tokenizer.token_bytes(token) for token in range(vocab_size)]


def token_tree(tokenizer: Tokenizer, words: list[bytes], ends: list[int]) -> LLTokenizer:
    """Return the tree of the tokens with the bytes `words`. 152,000 tokens take about a second.

    `ends` are the end tokens, at least one.

    Raises:
        ValueError: if a token is too long.
    """
    longest = max(map(len, words))
    if longest > MAX_TOKEN_BYTES:
        raise ValueError(
            f"tokenizer: expected tokens of at most {MAX_TOKEN_BYTES} bytes, got one of {longest}: "
            "use another tokenizer"
        )
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, words, ends[0])), eos_token=ends)


class _Vocabulary:
    """The vocabulary with the attribute names that llguidance expects of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, words: list[bytes], end: int) -> None:
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = words
        self.special_token_ids = sorted(tokenizer.special_token_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)
