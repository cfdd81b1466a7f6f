"""Log-probabilities as chat completions report them."""

from tinyllm_engine import Output, TokenLogprob
from tinyllm_qwen import Tokenizer

from tinyllm_serve.schemas.chat_answer import ChosenLogprob, TokenLogprobBody


def chat_logprob(output: Output, tokenizer: Tokenizer) -> ChosenLogprob:
    """The log-probability of a token and of its rivals, of a request that asked for it."""
    assert output.logprob is not None
    chosen = _body(TokenLogprob(output.token, output.logprob), tokenizer)
    rivals = [_body(rival, tokenizer) for rival in output.top]
    return ChosenLogprob(**chosen.model_dump(), top_logprobs=rivals)


def token_text(token: int, tokenizer: Tokenizer) -> str:
    """A token by itself; half a character becomes U+FFFD."""
    return tokenizer.token_bytes(token).decode(errors="replace")


def _body(scored: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprobBody:
    return TokenLogprobBody(
        token=token_text(scored.token, tokenizer),
        logprob=scored.logprob,
        bytes=list(tokenizer.token_bytes(scored.token)),
    )
