# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2.1", "safetensors>=0.8", "torch==2.13.0"]
# ///
"""Make packages/tinyllm-ops/tests/goldens/ops.safetensors: the ops, computed by PyTorch.

Run by hand after a change here: `uv run --script tools/goldens/ops.py`. The names of the tensors
are `case.argument`, and `case.y` for the result. `rope.positions` is int32, all other tensors are
float32.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "packages/tinyllm-ops/tests/goldens/ops.safetensors"


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(a, b) -> (-b, a) over the halves of the last axis, the way transformers pairs features."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotary(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    """Rotary embedding of x `B H L D` at positions `B L`, in the steps that transformers takes."""
    dim = x.shape[-1]
    inverse = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    angles = positions[:, :, None].float() * inverse
    both = torch.cat((angles, angles), dim=-1)[:, None]
    return x * both.cos() + rotate_half(x) * both.sin()


def linear(case: str, *lead: int) -> dict[str, torch.Tensor]:
    """Return a case of a projection from 33 to 17 features, for rows of shape `lead`."""
    x, w, bias = torch.randn(*lead, 33), torch.randn(17, 33), torch.randn(17)
    return {
        f"{case}.x": x,
        f"{case}.w": w,
        f"{case}.bias": bias,
        f"{case}.y": functional.linear(x, w, bias),
    }


def attention(
    case: str, heads: tuple[int, int], lengths: tuple[int, int], mask: str | None
) -> dict[str, torch.Tensor]:
    """Return a case of attention with `heads` (H, Hkv) and `lengths` (L, S)."""
    q = torch.randn(2, heads[0], lengths[0], 16)
    k, v = (torch.randn(2, heads[1], lengths[1], 16) for _ in range(2))
    grouped = heads[0] != heads[1]
    added = torch.randn(2, heads[0], *lengths) if mask == "additive" else None
    y = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=added, is_causal=mask == "causal", enable_gqa=grouped
    )
    given = {} if added is None else {f"{case}.mask": added}
    return {f"{case}.q": q, f"{case}.k": k, f"{case}.v": v, **given, f"{case}.y": y}


def main() -> None:
    """Compute every case and write the file."""
    argparse.ArgumentParser(description=f"Compute the ops in PyTorch; write {TARGET}.").parse_args()
    torch.manual_seed(0)
    x, gate, up = torch.randn(5, 40) * 4, torch.randn(3, 40) * 4, torch.randn(3, 40)
    logits, hidden, weight = torch.randn(5, 40) * 4, torch.randn(5, 40) * 4, torch.randn(40)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 100, 3, 4000]])
    heads_first = torch.randn(2, 3, 5, 16)
    tensors = {
        **linear("linear_rows", 4),
        **linear("linear_batch", 2, 3),
        "silu.x": x,
        "silu.y": functional.silu(x),
        "swiglu.gate": gate,
        "swiglu.up": up,
        "swiglu.y": functional.silu(gate) * up,
        "softmax.x": logits,
        "softmax.y": functional.softmax(logits, dim=-1),
        "rms_norm.x": hidden,
        "rms_norm.weight": weight,
        "rms_norm.y": functional.rms_norm(hidden, (40,), weight, 1e-6),
        "rope.x": heads_first.transpose(1, 2).contiguous(),
        "rope.positions": positions.to(torch.int32),
        "rope.y": rotary(heads_first, positions, 1e6).transpose(1, 2).contiguous(),
        **attention("attention_plain", (4, 4), (3, 7), None),
        **attention("attention_causal", (4, 4), (6, 6), "causal"),
        **attention("attention_grouped", (14, 2), (6, 6), "causal"),
        **attention("attention_additive", (6, 3), (3, 9), "additive"),
    }
    TARGET.parent.mkdir(exist_ok=True)
    save_file(tensors, TARGET, metadata={"made by": "tools/goldens/ops.py", "torch": "2.13.0"})


if __name__ == "__main__":
    main()
