"""Gated DeltaNet: the recurrent layer of Qwen3-Next and Qwen3.5."""

from dataclasses import KW_ONLY, dataclass

import mlx.core as mx
from jaxtyping import Float, Float32
from tinyllm_ops import REFERENCE, OpSet, Weight
from tinyllm_ops.checks import require_dtype, require_shape

from tinyllm_layers.attention import new_token_batch
from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import LayerCache, StateCache, StateShape
from tinyllm_layers.cache.recurrent import RecurrentCache
from tinyllm_layers.communicator import SINGLE, Communicator


@dataclass(frozen=True, eq=False)
class GatedDeltaNet:
    """A layer that reads earlier tokens from a state of constant size (Yang et al. 2024).

    Attention keeps the keys and values of all tokens. This layer keeps one matrix S for each value
    head, `Dv Dk`, however long the text is. For each token:

        q, k, v = causal_conv(wqkv x)         # a token also sees the K-1 tokens before it
        S       = g S, and then S moves towards S k = v        # see `tinyllm_ops.gated_delta`
        out     = wo(rms_norm(S q) * silu(wz x))

    The decay g and the step size of the move are computed from the token by `wa` and `wb`.
    The layer needs no positions: the order of the tokens is the order of the updates.

    Attributes:
        hidden_size: E.
        num_key_heads: Hk, the number of heads of q and k in this process.
        num_value_heads: Hv, the number of heads of v in this process, a multiple of Hk.
        key_dim: Dk.
        value_dim: Dv.
        wqkv: the projection to queries, keys and values, `C E` with C = 2 Hk*Dk + Hv*Dv. The rows
            of q come first, then k, then v.
        wz: the projection to the gates of the output, `(Hv*Dv) E`.
        wb: the projection to the step sizes, `Hv E`.
        wa: the projection to the decays, `Hv E`.
        conv: the weights of the convolution, `C K`. The last weight belongs to the token itself.
        a_log: logarithm of the decay rate of each head, `Hv` in float32.
        dt_bias: the bias of the decays, `Hv`.
        norm: the weight of the norm of each head, `Dv`.
        wo: the output projection, `E (Hv*Dv)`.
        norm_eps: eps of the norm.
        communicator: the processes that share the layer. Each computes some of the heads.
        ops: the implementation of the maths.

    Raises:
        ValueError: if Hv is no multiple of Hk, or a weight does not have the shape above.
    """

    hidden_size: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    wqkv: Weight
    wz: Weight
    wb: Weight
    wa: Weight
    conv: Float[mx.array, "C K"]
    a_log: Float32[mx.array, "Hv"]
    dt_bias: Float[mx.array, "Hv"]
    norm: Float[mx.array, "Dv"]
    wo: Weight
    _: KW_ONLY
    norm_eps: float = 1e-6
    communicator: Communicator = SINGLE
    ops: OpSet = REFERENCE

    def __post_init__(self) -> None:
        """Check the weights."""
        if self.num_key_heads < 1 or self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"num_value_heads: expected a multiple of {self.num_key_heads} key heads, "
                f"got {self.num_value_heads}"
            )
        heads, width = self.num_value_heads, self.num_value_heads * self.value_dim
        for name, w, shape in (
            ("wqkv", self.wqkv, (self.channels, self.hidden_size)),
            ("wz", self.wz, (width, self.hidden_size)),
            ("wb", self.wb, (heads, self.hidden_size)),
            ("wa", self.wa, (heads, self.hidden_size)),
            ("conv", self.conv, (self.channels, self.conv.shape[-1])),
            ("a_log", self.a_log, (heads,)),
            ("dt_bias", self.dt_bias, (heads,)),
            ("norm", self.norm, (self.value_dim,)),
            ("wo", self.wo, (self.hidden_size, width)),
        ):
            require_shape(name, w, shape)
        require_dtype("a_log", self.a_log, mx.float32)

    @property
    def channels(self) -> int:
        """C, the number of channels of the convolution: all features of q, k and v."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def state_shape(self) -> StateShape:
        """The shape of the state that a cache keeps for each sequence."""
        return StateShape(
            kernel=self.conv.shape[1],
            channels=self.channels,
            num_heads=self.num_value_heads,
            value_dim=self.value_dim,
            key_dim=self.key_dim,
            dtype=self.conv.dtype,
        )

    def __call__(
        self,
        x: Float[mx.array, "B L E"],
        batch: Batch | None = None,
        cache: LayerCache | None = None,
        *,
        residual: Float[mx.array, "B L E"] | None = None,
    ) -> Float[mx.array, "B L E"]:
        """Compute L new tokens of each row, and the states after them.

        Args:
            x: the new tokens, normalized.
            batch: the layout of the pass. Unless given, the new tokens follow the tokens that the
                cache has seen.
            cache: the states of earlier tokens, which are replaced by the states after the new
                tokens. None for sequences without earlier tokens.
            residual: an array that is added to the result.

        Raises:
            ValueError: if shapes do not fit, or the cache is not one of states.
        """
        if batch is None:
            batch = new_token_batch(x, cache)
        ops, phase = self.ops, batch.phase
        recurrent_cache = RecurrentCache() if cache is None else state_cache(cache)
        qkv, a, b, z = (
            ops.linear(x, w, phase=phase).flatten(0, 1)  # T = B L: all tokens of the pass
            for w in (self.wqkv, self.wa, self.wb, self.wz)
        )
        conv, state, table = recurrent_cache.slots_and_table(batch, self.state_shape)
        qkv, conv = ops.causal_conv(qkv, self.conv, conv, table)
        q, k, v = self._heads(qkv)
        out, state = ops.gated_delta(q, k, v, a, b, self.a_log, self.dt_bias, state, table)
        gate = mx.unflatten(z, -1, (self.num_value_heads, self.value_dim))
        out = ops.gated_rms_norm(out, gate, self.norm, self.norm_eps)  # T Hv Dv
        recurrent_cache.commit(conv, state, table, phase)

        joined = mx.unflatten(out.flatten(1), 0, x.shape[:2])  # B L Hv*Dv
        # Rank 0 alone adds the residual: the all-reduce would add it once for each rank.
        local_residual = residual if self.communicator.rank == 0 else None
        y = ops.linear(joined, self.wo, None, local_residual, phase=phase)
        return self.communicator.all_reduce(y)

    def check_positions(self, batch: Batch) -> None:
        """Accept every batch: the layer has no positions and no longest text."""

    def _heads(
        self, qkv: Float[mx.array, "T C"]
    ) -> tuple[Float[mx.array, "T Hk Dk"], Float[mx.array, "T Hk Dk"], Float[mx.array, "T Hv Dv"]]:
        """Split the channels into the heads of q, k and v."""
        width = self.num_key_heads * self.key_dim
        q, k, v = mx.split(qkv, [width, 2 * width], axis=-1)
        return (
            mx.unflatten(q, -1, (self.num_key_heads, self.key_dim)),
            mx.unflatten(k, -1, (self.num_key_heads, self.key_dim)),
            mx.unflatten(v, -1, (self.num_value_heads, self.value_dim)),
        )


def state_cache(cache: LayerCache) -> StateCache:
    """Return the cache of a recurrent layer.

    Raises:
        ValueError: if the cache is not one of states.
    """
    if not isinstance(cache, StateCache):
        raise ValueError(
            f"cache: expected states for a recurrent layer, got {type(cache).__name__}: "
            "make one cache per layer with `make_caches` of the model"
        )
    return cache
