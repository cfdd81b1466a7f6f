"""The optimizer: Muon for the matrices of the layers, AdamW for the embedding and the norms.

The alternative is AdamW for all parameters.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

NAMES = ("muon", "adamw")
RATES = {"muon": 2e-2, "adamw": 3e-3}


class Optimizer:
    """Optimizer of all parameters, with a clipped gradient norm and a common learning rate factor.

    Muon makes the update of a matrix orthogonal, so that no direction dominates. That suits a map
    from features to features. The rows of an embedding are tokens, so AdamW updates the embedding.
    """

    def __init__(self, named: dict[str, Tensor], name: str, embedding: str) -> None:
        """Make an optimizer that has taken no step.

        Args:
            named: the parameters by name.
            name: "muon" or "adamw".
            embedding: the name of the embedding, a matrix that Muon is not for.

        Raises:
            ValueError: `name` is neither.
        """
        if name not in NAMES:
            raise ValueError(f"optimizer {name!r}, expected one of {', '.join(NAMES)}")
        self.parameters = list(named.values())
        matrices = {
            key: parameter
            for key, parameter in named.items()
            if name == "muon" and parameter.ndim == 2 and key != embedding
        }
        adamw = torch.optim.AdamW(
            [parameter for key, parameter in named.items() if key not in matrices],
            lr=RATES["adamw"],
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=True,
        )
        self.parts: list[torch.optim.Optimizer] = [adamw]
        if matrices:
            muon = torch.optim.Muon(
                matrices.values(), lr=RATES["muon"], weight_decay=0.01, momentum=0.95
            )
            self.parts.append(muon)
        self.rates = [part.param_groups[0]["lr"] for part in self.parts]

    def step(self, factor: float) -> float:
        """Step at `factor` times the learning rates; return the gradient norm before clipping.

        The norm of all gradients together is clipped to one.
        """
        norm = clip_grad_norm_(self.parameters, 1.0).item()
        for part, rate in zip(self.parts, self.rates, strict=True):
            part.param_groups[0]["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)
        return norm

    def state(self) -> list[dict[str, Any]]:
        """Return the state that `restore` needs."""
        return [part.state_dict() for part in self.parts]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Restore the state of an optimizer of the same parameters."""
        for part, saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)


# Shares of the budget at which warm-up ends, decay begins and 4-bit weights begin.
WARM_UP = 0.02
DECAY_FROM = 0.35
QUANTIZED_FROM = 0.75


@dataclass(frozen=True)
class Schedule:
    """A budget of tokens and, optionally, of minutes: the run ends when either is used up."""

    tokens: float
    minutes: float | None

    def progress(self, tokens: float, seconds: float) -> float:
        """Return the spent share of the budget, 0 to 1."""
        timed = seconds / 60 / self.minutes if self.minutes else 0.0
        return min(1.0, max(tokens / self.tokens, timed))


def rate(progress: float) -> float:
    """Return the factor of the learning rate: linear warm-up, constant, then linear decay to 0."""
    if progress < WARM_UP:
        return max(progress, 0.05 * WARM_UP) / WARM_UP
    return min(1.0, (1.0 - progress) / (1.0 - DECAY_FROM))


def quantized(progress: float) -> bool:
    """Return True in the last quarter of the run, which trains with 4-bit weights."""
    return progress >= QUANTIZED_FROM
