"""Draft tokens from the draft head of the model."""

from collections.abc import Callable, Mapping

from tinyllm_engine.head_runner import HeadRunner
from tinyllm_engine.request import RequestState
from tinyllm_engine.speculative.drafter import Drafter


class HeadDrafter(Drafter):
    """The draft head of a model, which continues each text greedily.

    It needs no preparation: the runner of the head gets the hidden states of each pass.
    """

    def __init__(
        self,
        runner: HeadRunner,
        reserve: Callable[[RequestState, int], bool],
        *,
        vocab_size: int,
    ) -> None:
        """Make a drafter.

        Args:
            runner: the runner of the draft head.
            reserve: allocates pages for the first tokens of a request: see `Scheduler.reserve`.
            vocab_size: the vocabulary size of the tokenizer. Larger ids are never proposed.
        """
        self._runner = runner
        self._reserve = reserve
        self._vocab_size = vocab_size

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Append draft tokens to the requests, one token of every request in each pass.

        Requests without a new token in the last step get no draft tokens.
        """
        outputs = self._runner.compute_accepted()
        outputs = {
            request: outputs[request]
            for request, limit in limits.items()
            if request in outputs and self._reserve(request, len(request.tokens) + limit)
        }
        while outputs:
            tokens = self._runner.best_tokens(outputs, self._vocab_size)
            for request, token in zip(outputs, tokens, strict=True):
                request.draft_tokens.append(token)
            outputs = self._runner.compute_drafts(
                {each: h for each, h in outputs.items() if len(each.draft_tokens) < limits[each]}
            )
        self._runner.start()

    def reset(self) -> None:
        """Drop the hidden states, whose requests have lost their pages."""
        self._runner.reset()
