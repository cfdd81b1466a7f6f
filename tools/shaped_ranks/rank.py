"""One rank: decode tokens with the other ranks, and print times and bytes sent.

Started by run.py with the checkpoint's folder, the dtype and the number of tokens.
"""

import json
import os
import sys
import time
from pathlib import Path

import mlx.core as mx
from tinyllm_kernels import BackendChoice
from tinyllm_layers import Batch
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.parallel.member import Member

PROMPT = [5, 80, 33, 33, 12, 150, 7]
WARM = 4


def sent() -> tuple[int, int]:
    """Return the bytes and packets sent by this namespace's devices, except loopback."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    rows = {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines}
    counts = [row for name, row in rows.items() if name != "lo"]
    return sum(int(row[8]) for row in counts), sum(int(row[9]) for row in counts)


def decode(model: LanguageModel, count: int) -> dict[str, object]:
    """Continue the prompt greedily, and time each token."""
    cache, tokens, seconds = model.make_caches(), mx.array([PROMPT]), []
    before = sent()
    for step in range(WARM + count):
        if step == WARM:
            before = sent()
        began = time.perf_counter()
        batch = Batch.at(cache[0].offset, *tokens.shape)  # type: ignore[arg-type]
        best = model.best_tokens(tokens, batch, cache, 1)
        token = best.tokens[0, mx.argmax(best.scores[0])]
        tokens = token.reshape(1, 1)
        mx.eval(tokens)
        seconds.append(time.perf_counter() - began)
    sent_bytes, packets = (now - then for now, then in zip(sent(), before, strict=True))
    return {"seconds": seconds[WARM:], "bytes": sent_bytes / count, "packets": packets / count}


def main() -> None:
    """Join, load, and drive or work."""
    folder, dtype, count = sys.argv[1:]
    backend = BackendChoice.choose("auto", dtype)
    member = Member.join(lambda _rank, _why: os._exit(1))
    if member is None:
        raise RuntimeError("started alone: run.py starts all ranks")
    with member:
        model, _ = member.load(folder, ops=backend.ops, dtype=backend.dtype)
        if member.is_driver:
            print(json.dumps(decode(member.drive(model), int(count))))
        else:
            member.work(model)


if __name__ == "__main__":
    main()
