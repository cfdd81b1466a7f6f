"""The gated DeltaNet layer of the hybrid, for training: rows are short and begin without a state.

transformers computes a row in chunks of 64 tokens and passes a state from chunk to chunk. Without
that loop, and with the convolution as four products, PyTorch can compile the loss.
"""

from typing import Any

import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import pad, silu, softplus
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet


class GatedDeltaNet(Qwen3_5GatedDeltaNet):  # type: ignore[misc]
    """transformers' layer with as many key heads as value heads.

    A call without a cache computes each row as a single chunk.
    """

    def forward(
        self, hidden_states: Tensor, cache_params: Any = None, **others: Any
    ) -> Tensor:  # B L E
        """Return the output of the layer, B L E."""
        if cache_params is not None:
            output: Tensor = super().forward(hidden_states, cache_params, **others)
            return output
        mixed = silu(convolve(self.in_proj_qkv(hidden_states), self.conv1d.weight))
        sizes = [self.key_dim, self.key_dim, self.value_dim]
        query, key, value = (
            part.unflatten(-1, (self.num_v_heads, -1)).transpose(1, 2)  # B H L D
            for part in mixed.split(sizes, dim=-1)
        )
        beta = self.in_proj_b(hidden_states).sigmoid()
        step = softplus(self.in_proj_a(hidden_states).float() + self.dt_bias)
        decay = -self.A_log.exp() * step
        mixed = gated_delta(query, key, value, decay.mT, beta.mT).transpose(1, 2)  # B L H D
        gate = self.in_proj_z(hidden_states).unflatten(-1, (-1, self.head_v_dim))
        return self.out_proj(self.norm(mixed, gate).flatten(2))


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Return the causal convolution of `x` (B L C) with `weight` (C 1 K)."""
    taps = weight.shape[-1]
    length = x.shape[1]
    padded = pad(x, (0, 0, taps - 1, 0))
    return sum(padded[:, tap : tap + length] * weight[:, 0, tap] for tap in range(taps))


def gated_delta(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Return the gated delta rule's outputs (B H L D) of rows that begin with an empty state.

        S_t = S_(t-1) exp(decay_t) + k_t u_t^T;  u_t = beta_t (v_t - S_(t-1)^T exp(decay_t) k_t)

    The u_t of a row are the solution of a triangular system: each depends on those before it.
    Formula: "Gated Delta Networks", arXiv 2412.06464, section 3.3.

    Args:
        query: B H L D, before normalization.
        key: B H L D, before normalization.
        value: B H L D.
        decay: logarithms of the decays, B H L.
        beta: B H L.
    """
    query, key, value = (each.float() for each in (query, key, value))
    query, key = (
        each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (query, key)
    )
    total = decay.cumsum(-1)
    later = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).triu(1)
    decays = (total[..., :, None] - total[..., None, :]).masked_fill(later, -torch.inf).exp()
    system = (beta[..., None] * key) @ key.mT * decays  # its diagonal counts as ones
    written = solve_triangular(
        system.float(), (beta[..., None] * value).float(), upper=False, unitriangular=True
    )
    scores = query @ key.mT * decays * query.shape[-1] ** -0.5
    return scores.to(written.dtype) @ written


def check(model: torch.nn.Module) -> None:
    """Compare the layers of `model` with transformers' own on random input.

    Raises:
        ValueError: the outputs differ by more than 1e-5 of the largest.
    """
    layers = [module for module in model.modules() if isinstance(module, GatedDeltaNet)]
    generator = torch.Generator().manual_seed(0)
    for layer in layers:
        x = torch.randn((2, 70, layer.hidden_size), generator=generator)
        with torch.no_grad():
            expected, actual = Qwen3_5GatedDeltaNet.forward(layer, x), layer(x)
        difference = ((expected - actual).abs().max() / expected.abs().max()).item()
        if difference > 1e-5:
            raise ValueError(
                f"gated DeltaNet differs from that of transformers by {difference:.1e}"
            )
