"""Texts or tokens that clients send, as tokens."""

from tinyllm_qwen import Tokenizer

from tinyllm_serve.schemas.completion_request import TextOrTokens


def token_lists(given: TextOrTokens, tokenizer: Tokenizer) -> list[list[int]]:
    """Each of the texts as tokens; one text, or one list of tokens, is a list of one."""
    if isinstance(given, str):
        return [tokenizer.encode(given)]
    lists: list[list[int]] = []
    single: list[int] = []
    for item in given:
        match item:
            case str():
                lists.append(tokenizer.encode(item))
            case int():
                single.append(item)
            case list():
                lists.append(item)
    return lists or [single]
