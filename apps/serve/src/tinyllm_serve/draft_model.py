"""A second, smaller model that guesses what the first will say."""

from tinyllm_kernels import Arithmetic
from tinyllm_qwen import Qwen, Tokenizer, load

from tinyllm_serve.errors import ServeError


def load_draft_model(name: str, tokenizer: Tokenizer, arithmetic: Arithmetic) -> Qwen:
    """Load it as the first was loaded.

    Args:
        name: a folder, "pico" or a repository on the Hub.
        tokenizer: the first model's.
        arithmetic: what computes.

    Raises:
        ServeError: if its tokens are not the first model's: it would guess in another language.
        CheckpointError, HubError, ValueError: if it cannot be loaded.
    """
    draft, own = load(name, ops=arithmetic.ops, dtype=arithmetic.dtype)
    if own.vocab_size != tokenizer.vocab_size:
        raise ServeError(
            f"--draft-model: expected the {tokenizer.vocab_size} tokens of the model, "
            f"{name} has {own.vocab_size}: take a smaller model of the same family"
        )
    for token in range(tokenizer.vocab_size):
        expected, actual = tokenizer.token_bytes(token), own.token_bytes(token)
        if expected != actual:
            raise ServeError(
                f"--draft-model: expected the tokens of the model, but {token} is {actual!r} in "
                f"{name} and not {expected!r}: take a smaller model of the same family"
            )
    return draft
