"""Bytes of the keys and values of a text, for each kind of cache."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from matplotlib.figure import Figure
from tinyllm_layers import DenseCache, KVCache, QuantizedCache, RotatingCache

# Qwen3-0.6B; see its config.json.
LAYERS, KV_HEADS, DIM = 28, 8, 128
WEIGHTS_4BIT = 335e6  # bytes, as `convert --bits 4` writes them
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
CACHES: dict[str, Callable[[], KVCache]] = {
    "DenseCache, float16": DenseCache,
    "QuantizedCache, 8 bits": lambda: QuantizedCache(bits=8),
    "QuantizedCache, 4 bits": lambda: QuantizedCache(bits=4),
    "RotatingCache, 4,096 tokens": lambda: RotatingCache(4096),
}


def nbytes(make: Callable[[], KVCache], length: int) -> int:
    """Bytes that all layers allocate for a text that grows: the bytes of one cache times 28."""
    cache = make()
    for start in range(0, length, 128):
        kv = mx.zeros((1, KV_HEADS, min(128, length - start), DIM), mx.float16)
        cache.update(kv, kv)  # never evaluated: `nbytes` needs no values
    return cache.nbytes * LAYERS


def table() -> str:
    """Return the bytes of each cache for texts of three lengths, as a Markdown table."""
    rows = ["| cache | 1,024 tokens | 8,192 | 32,768 |", "|---|---:|---:|---:|"]
    for name, make in CACHES.items():
        cells = (f"{nbytes(make, length) / 1e6:,.0f} MB" for length in (1024, 8192, 32768))
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def draw(image: Path) -> str:
    """Draw bytes over tokens, and return the table of the page."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, make in CACHES.items():
        sizes = [nbytes(make, length) for length in LENGTHS]
        axes.plot(LENGTHS, [size / 1e6 for size in sizes], "o-", markersize=3, label=name)
    axes.axhline(WEIGHTS_4BIT / 1e6, color="black", linewidth=1, linestyle="--")
    axes.text(LENGTHS[0], WEIGHTS_4BIT / 1e6 * 1.1, "the weights, in 4 bits", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="MB of keys and values")
    axes.set_title("Caches in the shape of Qwen3-0.6B")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(image, dpi=120)
    return table()
