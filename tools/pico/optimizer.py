"""The optimizer: Muon for the matrices of the layers, AdamW for the embedding and the norms; or AdamW for all."""

import torch
from torch import Tensor

NAMES = ("muon", "adamw")
RATES = {"muon": 2e-2, "adamw": 3e-3}


class Optimizer:
    """Steps all parameters at `factor` times their learning rate, after clipping the gradient's norm to one."""

    def __init__(
        self, named: dict[str, Tensor], name: str, embedding: str, rate: float | None = None
    ) -> None:
        if name not in NAMES:
            raise ValueError(f"optimizer {name!r}, expected one of {', '.join(NAMES)}")
        self.all = list(named.values())
        matrices = [
            p for n, p in named.items() if name == "muon" and p.ndim == 2 and n != embedding
        ]
        others = [p for p in self.all if not any(p is m for m in matrices)]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                others,
                lr=RATES["adamw"] if matrices else rate or RATES["adamw"],
                betas=(0.9, 0.98),
                weight_decay=0.01,
                fused=True,
            )
        ]
        if matrices:
            self.parts.append(
                torch.optim.Muon(
                    matrices, lr=rate or RATES["muon"], weight_decay=0.01, momentum=0.95
                )
            )
        self.rates = [part.param_groups[0]["lr"] for part in self.parts]

    def step(self, factor: float) -> float:
        """One step; the norm of the gradient before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.all, 1.0).item()
        for part, base in zip(self.parts, self.rates):
            part.param_groups[0]["lr"] = base * factor
            part.step()
            part.zero_grad(set_to_none=True)
        return norm

    def state(self) -> list[dict]:
        """What `restore` needs."""
        return [part.state_dict() for part in self.parts]

    def restore(self, state: list[dict]) -> None:
        """Takes up the state of an optimizer of the same parameters."""
        for part, saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)
