"""Draft tokens from the draft head of a model, for one sequence."""

from collections.abc import Iterator, Sequence

import mlx.core as mx
from jaxtyping import Float, Int
from tinyllm_layers import Batch, RotatingCache, SequenceCache
from tinyllm_ops import Phase

from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.sampling.sampler import Sample, Sampler, choose, with_logprobs
from tinyllm_qwen.tolist import ints


class Speculation:
    """Speculative decoding of one sequence with the draft head of its model.

    A pass of the model computes the last token and the draft tokens after it. The sampler chooses
    the token after each of them. A draft token is accepted if it equals the chosen token, and all
    draft tokens before it are accepted (Leviathan et al. 2023 with equality as the test). The
    chosen tokens are those of decoding without draft tokens, because a decode pass gives a token
    the same bits in any number of rows.

    Attributes:
        drafted: the number of verified draft tokens so far.
        accepted: the number of accepted draft tokens so far.
    """

    def __init__(
        self,
        model: LanguageModel,
        caches: Sequence[SequenceCache],
        sampler: Sampler,
        num_speculative_tokens: int,
        vocab_size: int,
    ) -> None:
        """Begin without draft tokens.

        Args:
            model: the model, with a draft head.
            caches: the caches of the model, that of the draft head included.
            sampler: the sampler of the text.
            num_speculative_tokens: the most draft tokens of a pass.
            vocab_size: the number of tokens of the tokenizer. Larger ids are never proposed.

        Raises:
            ValueError: if the model has no draft head, or a cache cannot be trimmed.
        """
        if not isinstance(model, Qwen) or model.draft_head is None:
            raise ValueError(
                "num_speculative_tokens: expected 0 for a model without a draft head, got "
                f"{num_speculative_tokens}: load it in one process with draft_head=True"
            )
        if any(isinstance(layer_cache, RotatingCache) for layer_cache in caches):
            raise ValueError(
                "num_speculative_tokens: expected 0 with a limited cache, got "
                f"{num_speculative_tokens}: rejected draft tokens cannot be removed from it: leave "
                "out max_size"
            )
        self.drafted = self.accepted = 0
        self._model = model
        self._caches = caches
        self._sampler = sampler
        self._limit = num_speculative_tokens
        self._vocab_size = vocab_size
        self._output: Float[mx.array, "1 1 E"] | None = None  # of the head, at the last position
        self._draft: Int[mx.array, "drafts"] | None = None

    def prefill(self, tokens: Sequence[int], after: int) -> None:
        """Compute a chunk of the prompt. `after` is the prompt token after the chunk."""
        h, batch = self._hidden(tokens, "prefill")
        self._follow(h, [*tokens[1:], after], batch)

    def first(self, tokens: Sequence[int]) -> Sample:
        """Compute the last chunk of the prompt, and choose the first token of the answer."""
        h, batch = self._hidden(tokens, "prefill")
        sample = self._sampler(self._model.logits(h, last=1).reshape(-1))
        following = [*tokens[1:], int(sample.token)]  # waits for the device
        self._output = self._follow(h, following, batch)[:, -1:]
        return sample

    def steps(self, sample: Sample, limit: int) -> Iterator[tuple[list[Sample], list[mx.array]]]:
        """Yield the samples of each step: see `PlainDecoding.steps`.

        The device computes the draft tokens of the next step while a caller reads the samples.
        """
        samples, count = [sample], 1
        while True:
            self.propose(max(0, limit - count - 1))
            yield samples, []
            if count >= limit:
                return
            samples = self.verify(int(samples[-1].token))
            count += len(samples)

    def verify(self, last: int) -> list[Sample]:
        """Verify the draft tokens, and advance the sampler and the caches by the accepted tokens.

        Args:
            last: the last token of the text.

        Returns:
            The samples of the accepted draft tokens, and of the token after them.
        """
        draft = [] if self._draft is None else ints(self._draft)
        start, sampler = self._caches[0].offset, self._sampler
        h, _ = self._hidden([last, *draft], "decode")
        logits = self._model.logits(h, indices=range(h.shape[1]))[:, 0]
        chosen = choose(sampler.ahead(draft), logits)
        tokens = ints(chosen)  # waits for the device
        accepted = next(
            (i for i, pair in enumerate(zip(draft, tokens, strict=False)) if pair[0] != pair[1]),
            len(draft),
        )
        self.drafted += len(draft)
        self.accepted += accepted
        kept = tokens[: accepted + 1]
        for token in kept:
            sampler.advance(token)
        for layer_cache in self._model.layer_caches(self._caches):
            layer_cache.trim(start + len(kept))
        batch = Batch.at(start, 1, len(kept), "decode")
        self._output = self._follow(h[:, : len(kept)], kept, batch)[:, -1:]
        self._draft = None
        top = sampler.params.top_logprobs
        return [
            with_logprobs(chosen[row], logits[row], top, self._model.ops)
            for row in range(len(kept))
        ]

    def propose(self, limit: int) -> None:
        """Start to compute at most `limit` draft tokens for the next step."""
        count, model, head = min(self._limit, limit), self._model, self._caches[-1]
        start, output, draft = head.offset, self._output, list[mx.array]()
        if output is None:
            return
        for ahead in range(count):
            token = mx.argmax(model.project(output)[..., : self._vocab_size], axis=-1)
            draft.append(token)
            if ahead + 1 < count:  # the head continues with its own output
                # Within one graph, MLX would copy the cache for each pass.
                mx.eval(token)
                batch = Batch.at(head.offset, 1, 1, "decode")
                output = model.draft(token, output, batch, self._caches)
        head.trim(start)
        self._draft = mx.concatenate(draft, axis=1)[0] if draft else None
        # The draft depends on all writes to the cache. Reading the arrays would end their loan
        # before its last pass is scheduled, and the pass would copy the cache.
        mx.async_eval(head.arrays if self._draft is None else [self._draft])

    def _hidden(
        self, tokens: Sequence[int], phase: Phase
    ) -> tuple[Float[mx.array, "1 L E"], Batch]:
        """Compute new tokens with the model. Return the output of the last layer, and the batch."""
        batch = Batch.at(self._caches[0].offset, 1, len(tokens), phase)
        return self._model.hidden(mx.array([tokens], dtype=mx.int32), batch, self._caches), batch

    def _follow(
        self, h: Float[mx.array, "1 L E"], tokens: Sequence[int], batch: Batch
    ) -> Float[mx.array, "1 L E"]:
        """Compute the draft head at positions that the model has just computed.

        Args:
            h: the output of the last layer at these positions.
            tokens: the token after each position.
            batch: the layout of the positions.
        """
        following = mx.array([tokens], dtype=mx.int32)
        return self._model.draft(following, self._model.norm(h), batch, self._caches)
