"""Memory and time to load a checkpoint, measured in a separate process. Linux only."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
from matplotlib.figure import Figure
from tinyllm_qwen import ConversionConfig, QwenConfig, convert
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.config.quantization import PackedFormat

TIMES = 3
CONFIG: dict[str, object] = {  # Qwen3-0.6B
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
LOAD = """
import sys, time
from pathlib import Path
import mlx.core as mx
from tinyllm_kernels import BackendChoice
from tinyllm_layers import Backend
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.checkpoint.weights import load_weights

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

folder, dtype, ops = Path(sys.argv[1]), sys.argv[2], BackendChoice.choose(sys.argv[3]).ops
config = QwenConfig.from_folder(folder)
mx.eval(mx.zeros((8,)).astype(mx.bfloat16))
before, started = peak(), time.perf_counter()
weights = load_weights(folder, config, dtype=None if dtype == "own" else getattr(mx, dtype))
mx.eval([array for w in weights.values() for array in (w.arrays if hasattr(w, "bits") else [w])])
if isinstance(ops, Backend):
    ops.prepare(weights)
print(peak() - before, time.perf_counter() - started)
"""


def write(folder: Path) -> None:
    """Write a checkpoint in the shape of CONFIG. Its numbers repeat, because only sizes matter."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    shapes = expected_shapes(QwenConfig.from_hf(CONFIG))
    some = mx.random.normal((1 << 20,)).astype(mx.bfloat16)
    tensors = {}
    for name, shape in shapes.items():
        size = mx.zeros(shape, mx.bool_).size
        tensors[f"model.{name}"] = mx.tile(some, -(-size // some.size))[:size].reshape(shape)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)


def load(folder: Path, dtype: str, ops: str) -> tuple[float, float]:
    """Return the growth of peak memory in bytes, and the seconds, as medians of TIMES loads."""
    runs = []
    for _ in range(TIMES):
        command = [sys.executable, "-c", LOAD, str(folder), dtype, ops]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append([float(number) for number in done.stdout.split()])
    grown, seconds = zip(*runs, strict=True)
    return statistics.median(grown), statistics.median(seconds)


def draw(image: Path) -> str:
    """Draw file sizes and peaks of memory, and return them as a Markdown table."""
    with TemporaryDirectory() as scratch:
        wide, packed = Path(scratch) / "bfloat16", Path(scratch) / "4-bit"
        write(wide)
        convert(wide, packed, ConversionConfig(packed=PackedFormat(group_size=64, bits=4)))
        cases = [
            ("bfloat16, as it is", wide, "own", "mlx"),
            ("bfloat16, to float32", wide, "float32", "mlx"),
            ("4 bits, as it is", packed, "own", "mlx"),
            ("4 bits, rows side by side", packed, "own", "cpu"),
            ("4 bits, scales to float32", packed, "float32", "mlx"),
        ]
        found = [
            (
                name,
                sum(file.stat().st_size for file in folder.glob("*.safetensors")),
                *load(folder, dtype, ops),
            )
            for name, folder, dtype, ops in cases
        ]
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    rows = range(len(found))
    axes.barh([row - 0.2 for row in rows], [f[1] / 1e6 for f in found], 0.38, label="file")
    axes.barh(
        [row + 0.2 for row in rows], [f[2] / 1e6 for f in found], 0.38, label="peak of memory"
    )
    axes.set_yticks(list(rows), [f[0] for f in found])
    axes.invert_yaxis()
    axes.set(xlabel="MB", title="Loading weights in the shape of Qwen3-0.6B")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=8)
    figure.savefig(image, dpi=120)
    head = "| weights | file | peak of memory | seconds |\n|---|---:|---:|---:|\n"
    return head + "\n".join(
        f"| {name} | {size / 1e6:,.0f} MB | {grown / 1e6:,.0f} MB | {seconds:.1f} |"
        for name, size, grown, seconds in found
    )
