"""One rank of several: continues a prompt with each checkpoint that is named, greedily.

MLX_RANK and MLX_HOSTFILE say which one it is, and where the others are; the first argument says how
they split the models that the others name. For each checkpoint it
prints a line of JSON: the tokens, the bytes that the system read for it while it loaded, and those
that the loader said it would read.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Ranks
from tinyllm_ops import MLX
from tinyllm_qwen.checkpoint.weights import load_part
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.share import Share
from tinyllm_qwen.parallel.split import Split

PROMPT = [5, 80, 33, 33, 12, 150, 7]
STEPS = 4


def continued(model: Qwen) -> list[int]:
    """Tokens after the prompt: chosen from all scores first, then from the best of each rank."""
    cache, tokens, found = model.make_cache(), mx.array([PROMPT]), []
    for step in range(STEPS):
        h = model.hidden(tokens, cache)[:, -1:]
        if step < STEPS // 3:
            token = mx.argmax(model.head(h), axis=-1)
        else:
            best = model.best(h, 1 if step % 2 else 3)
            token = best.tokens[0, 0, mx.argmax(best.scores[0, 0])]
        tokens = token.reshape(1, 1)
        found.append(int(token))
    return found


def bytes_read() -> int:
    """What the system has read for this process so far, from files and caches alike."""
    counters = Path("/proc/self/io")
    if not counters.exists():  # Linux alone tells
        return 0
    return int(dict(line.split(": ") for line in counters.read_text().splitlines())["rchar"])


def continued_after(folder: Path, ranks: Ranks, split: Split) -> dict[str, object]:
    """What this rank says, and what it read to be able to."""
    config = QwenConfig.from_folder(folder)
    totals: list[int] = []
    before = bytes_read()
    weights, partition = load_part(
        folder,
        config,
        ranks.rank,
        ranks.size,
        split=split,
        dtype=mx.float32,
        progress=lambda _, total: totals.append(total),
    )
    read = bytes_read() - before
    model = Qwen(config, weights, ops=MLX, share=Share(ranks, partition))
    return {"tokens": continued(model), "read": read, "told": totals[-1]}


def main() -> None:
    """Continue after every checkpoint."""
    mx.set_default_device(mx.cpu)
    ranks = Ranks(mx.distributed.init(strict=True, backend="ring"))
    split = Split.parse(sys.argv[1])
    for folder in sys.argv[2:]:
        sys.stdout.write(json.dumps(continued_after(Path(folder), ranks, split)) + "\n")


if __name__ == "__main__":
    main()
