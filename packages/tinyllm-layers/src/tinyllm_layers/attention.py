"""The attention of Qwen2, Qwen2.5 and Qwen3."""

from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import REFERENCE, OpSet, Weight, norm_rope
from tinyllm_ops.checks import require_shape

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import AttentionCache, LayerCache, SequenceCache
from tinyllm_layers.cache.dense import DenseCache
from tinyllm_layers.communicator import SINGLE, Communicator
from tinyllm_layers.rope import RoPE


@dataclass(frozen=True, eq=False)
class Biases:
    """The biases of the four projections. Qwen2 has biases of q, k and v, Qwen3 has none."""

    q: Float[mx.array, "q_width"] | None = None
    k: Float[mx.array, "kv_width"] | None = None
    v: Float[mx.array, "kv_width"] | None = None
    o: Float[mx.array, "E"] | None = None


@dataclass(frozen=True, eq=False)
class GroupedQueryAttention:
    """Attention in which groups of query heads share a key/value head (Ainslie et al. 2023).

    The layer projects x to queries, keys and values. It normalizes each head of queries and keys
    (Qwen3) and rotates the heads by position. The cache appends keys and values and computes
    attention, and the layer projects the result back to E.

    Attributes:
        hidden_size: E.
        num_heads: H, the number of query heads in this process.
        num_kv_heads: Hkv, the number of key/value heads in this process.
        head_dim: D. H*D need not equal E.
        wq: the projection to queries, `(H*D) E`.
        wk: the projection to keys, `(Hkv*D) E`.
        wv: the projection to values, `(Hkv*D) E`.
        wo: the output projection, `E (H*D)`.
        rope: the rotation.
        biases: the biases of the four projections.
        q_norm: weight of the norm of each query head, `D`, or None.
        k_norm: weight of the norm of each key head, `D`, or None.
        norm_eps: eps of `q_norm` and `k_norm`.
        communicator: the processes that share the layer. Each computes some of the heads.
        ops: the implementation of the maths.

    Raises:
        ValueError: if H is no multiple of Hkv, a weight does not have the shape above, or `rope`
            rotates more than D features.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    wq: Weight
    wk: Weight
    wv: Weight
    wo: Weight
    _: KW_ONLY
    rope: RoPE
    biases: Biases = Biases()
    q_norm: Float[mx.array, "D"] | None = None
    k_norm: Float[mx.array, "D"] | None = None
    norm_eps: float = 1e-6
    communicator: Communicator = SINGLE
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check the weights."""
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: expected a multiple of {self.num_kv_heads} key/value heads, "
                f"got {self.num_heads}"
            )
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        for name, w, bias, shape in (
            ("q", self.wq, self.biases.q, (width, self.hidden_size)),
            ("k", self.wk, self.biases.k, (kv_width, self.hidden_size)),
            ("v", self.wv, self.biases.v, (kv_width, self.hidden_size)),
            ("o", self.wo, self.biases.o, (self.hidden_size, width)),
        ):
            require_shape(f"w{name}", w, shape)
            if bias is not None:
                require_shape(f"biases.{name}", bias, shape[:1])
        for name, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            if norm is not None:
                require_shape(name, norm, (self.head_dim,))
        if self.rope.dims > self.head_dim:
            raise ValueError(
                f"rope: expected at most head_dim {self.head_dim} features to rotate, "
                f"got {self.rope.dims}"
            )

    @property
    def scale(self) -> float:
        """The factor of the scores, 1/sqrt(D)."""
        return float(self.head_dim**-0.5)

    def __call__(
        self,
        x: Float[mx.array, "B L E"],
        batch: Batch | None = None,
        cache: LayerCache | None = None,
        *,
        residual: Float[mx.array, "B L E"] | None = None,
    ) -> Float[mx.array, "B L E"]:
        """Let each of L new tokens attend to itself and to all tokens before it.

        Args:
            x: the new tokens, normalized.
            batch: the layout of the pass. Unless given, the new tokens follow the tokens in the
                cache.
            cache: keys and values of earlier tokens. The cache appends the new tokens. None for
                a sequence without earlier tokens.
            residual: an array that is added to the result.

        Raises:
            ValueError: if shapes do not fit, or a position lies beyond `rope.seq_len`.
        """
        if batch is None:
            batch = new_token_batch(x, cache)
        heads = self.attend(x, batch, DenseCache() if cache is None else cache)
        return self.output(heads, batch, residual)

    def check_positions(self, batch: Batch) -> None:
        """Raise ValueError if a position of the batch lies beyond `rope.seq_len`."""
        self.rope.check(batch.positions, batch.length)

    def attend(
        self, x: Float[mx.array, "B L E"], batch: Batch, cache: LayerCache
    ) -> Float[mx.array, "B L width"]:
        """Compute the attention output of all heads, `B L H*D`, before the output projection."""
        q, k, v = self.project(x, batch)
        out = attention_cache(cache).attend(q, k, v, batch, self.scale, self.ops)
        return out.swapaxes(1, 2).flatten(2)

    def output(
        self,
        heads: Float[mx.array, "B L width"],
        batch: Batch,
        residual: Float[mx.array, "B L E"] | None,
    ) -> Float[mx.array, "B L E"]:
        """Project the outputs of all heads to E, and add the residual."""
        # Rank 0 alone adds bias and residual: the all-reduce would add them once for each rank.
        is_first = self.communicator.rank == 0
        local_bias = self.biases.o if is_first else None
        local_residual = residual if is_first else None
        y = self.ops.linear(heads, self.wo, local_bias, local_residual, phase=batch.phase)
        return self.communicator.all_reduce(y)

    def project(
        self, x: Float[mx.array, "B L E"], batch: Batch
    ) -> tuple[
        Float[mx.array, "B H L D"], Float[mx.array, "B Hkv L D"], Float[mx.array, "B Hkv L D"]
    ]:
        """Compute the queries, keys and values of the new tokens, normalized and rotated."""
        rope = self.rope
        self.check_positions(batch)
        q, k = (
            norm_rope(
                self.ops,
                projected,
                norm,
                self.norm_eps,
                batch.positions,
                rope.base,
                rope.traditional,
                rope.scaling,
                rope.dims,
            )
            for projected, norm in (
                (self._heads(x, self.wq, self.biases.q, batch), self.q_norm),
                (self._heads(x, self.wk, self.biases.k, batch), self.k_norm),
            )
        )
        return q, k, self._heads(x, self.wv, self.biases.v, batch).swapaxes(1, 2)

    def _heads(
        self, x: Float[mx.array, "B L E"], w: Weight, bias: mx.array | None, batch: Batch
    ) -> Float[mx.array, "B L heads D"]:
        """Multiply by one of the three weights, and split the result into heads."""
        y = self.ops.linear(x, w, bias, phase=batch.phase)
        return mx.unflatten(y, -1, (-1, self.head_dim))


def new_token_batch(x: Float[mx.array, "B L E"], cache: LayerCache | None) -> Batch:
    """Return the batch of new tokens x that follow the tokens in the cache."""
    offset = cache.offset if isinstance(cache, SequenceCache) else 0
    return Batch.at(offset, x.shape[0], x.shape[1])


def attention_cache(cache: LayerCache) -> AttentionCache:
    """Return the cache of an attention layer.

    Raises:
        ValueError: if the cache is not one of keys and values.
    """
    if not isinstance(cache, AttentionCache):
        raise ValueError(
            f"cache: expected keys and values for an attention layer, got {type(cache).__name__}: "
            "make one cache per layer with `make_caches` of the model"
        )
    return cache
