"""The embedding of tokens, which is also the output head of a model with tied embeddings."""

from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import REFERENCE, OpSet, Weight
from tinyllm_ops.checks import require_shape

from tinyllm_layers.communicator import SINGLE, Communicator


@dataclass(frozen=True, eq=False)
class Embedding:
    """A table with one vector of `embedding_dim` numbers for each of `vocab_size` tokens.

    Several processes may share the table. Each then holds the rows of some tokens.

    Attributes:
        vocab_size: V.
        embedding_dim: E.
        weight: the rows of this process, `V E` or `len(local_vocab) E`.
        local_vocab: the ids of the tokens whose rows this process holds; None for all tokens.
        communicator: the processes that share the table.
        ops: the implementation of the maths.

    Raises:
        ValueError: if the weight does not have the shape above.
    """

    vocab_size: int
    embedding_dim: int
    weight: Weight
    _: KW_ONLY
    local_vocab: range | None = None
    communicator: Communicator = SINGLE
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check the table."""
        rows = self.vocab_size if self.local_vocab is None else len(self.local_vocab)
        require_shape("weight", self.weight, (rows, self.embedding_dim))

    def __call__(self, ids: Integer[mx.array, "*batch"]) -> Float[mx.array, "*batch E"]:
        """Look up the vectors of tokens. Processes that share the table all-reduce the vectors."""
        vocab = self.local_vocab
        if vocab is None:
            return self.ops.embedding(ids, self.weight)
        is_local = (ids >= vocab.start) & (ids < vocab.stop)
        rows = self.ops.embedding(mx.where(is_local, ids - vocab.start, 0), self.weight)
        return self.communicator.all_reduce(mx.where(is_local[..., None], rows, 0))

    def as_linear(self, h: Float[mx.array, "*batch E"]) -> Float[mx.array, "*batch local"]:
        """Return the logits of the tokens in `local_vocab`: h times the transposed table.

        This is the output head of a model with tied embeddings.
        """
        return self.ops.linear(h, self.weight)
