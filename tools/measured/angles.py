"""Errors of float32 rotations at far positions, measured against float64."""

from pathlib import Path

import mlx.core as mx
import numpy as np
from matplotlib.figure import Figure
from tinyllm_ops import MLX, REFERENCE, OpSet, Yarn
from tinyllm_ops.rotary_frequencies import rotary_frequencies

DIM, BASE, CONTEXT, FACTOR = 128, 1e6, 32768, 4
YARN = Yarn(factor=FACTOR, original_max_position_embeddings=CONTEXT)


def errors(positions: np.ndarray, ops: OpSet, scaling: Yarn | None) -> np.ndarray:
    """Return the largest error of a rotated unit pair at each position, over all pairs."""
    x = mx.concatenate([mx.ones(DIM // 2), mx.zeros(DIM // 2)])  # each pair is (1, 0)
    x = mx.broadcast_to(x, (1, len(positions), 1, DIM))
    turned = np.array(ops.rope(x, mx.array(positions), BASE, False, scaling), np.float64)
    angles = positions[:, None] * np.array(rotary_frequencies(DIM, BASE, scaling))
    magnitude = 1.0 if scaling is None else scaling.magnitude
    exact = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) * magnitude
    return np.abs(turned[0, :, 0] - exact).max(-1)


def draw(image: Path) -> str:
    """Draw the errors over the positions, and return them as a Markdown table."""
    rng = np.random.default_rng(0)
    last = CONTEXT * FACTOR - 1
    positions = np.unique((2 ** rng.uniform(4, np.log2(last), 800)).astype(np.int64))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for ops, marker in ((REFERENCE, "o"), (MLX, "x")):
        found = errors(positions, ops, None)
        axes.plot(positions, found, marker, markersize=3, alpha=0.6, label=ops.name)
    axes.plot(positions, positions * 2.0**-23, color="black", linewidth=1, label="position / 2^23")
    axes.axvline(CONTEXT, color="tab:gray", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="position", ylabel="largest error of a unit pair")
    axes.set_title(f"RoPE in float32 against float64, base {BASE:.0e}, D = {DIM}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(image, dpi=120)
    rows = []
    for upper in (1024, 8192, CONTEXT, CONTEXT * FACTOR):
        near = np.arange(upper - 1024, upper)
        cells = [
            f"{errors(near, ops, scaling).max():.1e}"
            for ops in (REFERENCE, MLX)
            for scaling in (None, YARN)
        ]
        rows.append(f"| {near[0]:,} to {near[-1]:,} | {' | '.join(cells)} |")
    head = "| positions | reference | reference, YaRN | mlx | mlx, YaRN |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows)
