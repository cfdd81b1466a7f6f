"""A drafter for tests, which knows the answers."""

import random
from collections.abc import Callable, Mapping, Sequence

from tinyllm_qwen import SamplingParams

from tinyllm_engine.request import RequestState
from tinyllm_engine.speculative.drafter import Drafter


class KnownAnswers(Drafter):
    """Proposes the tokens of the answers, some of which are replaced by wrong tokens.

    Prompt lookup finds few draft tokens in the texts of random weights.
    """

    def __init__(
        self,
        oracle: Callable[[Sequence[int], int, SamplingParams], list[int]],
        draw: random.Random,
    ) -> None:
        """Make a drafter from a function of prompt, length and sampling that returns answers."""
        self._oracle = oracle
        self._draw = draw

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Append draft tokens: about one in four is wrong, and some drafts are shorter."""
        for request, limit in limits.items():
            known, sampling = request.generated, request.request.sampling
            answer = self._oracle(request.prompt, request.max_tokens, sampling)
            draft_tokens = answer[known : known + self._draw.randrange(limit + 1)]
            request.draft_tokens += [
                0 if self._draw.random() < 0.25 else token for token in draft_tokens
            ]
