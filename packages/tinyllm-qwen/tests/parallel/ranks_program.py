"""Program of one rank: continue a fixed prompt greedily with each checkpoint of the arguments.

MLX_RANK is the rank, and MLX_HOSTFILE names the file with the addresses of all ranks. The first
argument is the split, the others are checkpoints. For each checkpoint the rank prints a line of
JSON: the tokens, the bytes that the process read during loading, and the total that the loader
announced. First every rank calls the model itself. Then rank 0 drives the other ranks, and its line
also has the tokens of the driven passes.
"""

import json
import sys
from itertools import takewhile
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Batch, RankCommunicator
from tinyllm_ops import MLX, NO_STATE, PageTable, StateTable
from tinyllm_qwen.checkpoint.weights import load_part
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.control_channel import ControlChannel
from tinyllm_qwen.parallel.driver import Driver
from tinyllm_qwen.parallel.execute import work
from tinyllm_qwen.parallel.rendezvous import connect
from tinyllm_qwen.partition.groups import ParallelGroups
from tinyllm_qwen.partition.split import Split
from tinyllm_qwen.sampling.best_tokens import BestTokens

PROMPT = [5, 80, 33, 33, 12, 150, 7]
STEPS = 4
DRIVEN = 3
PAGE = 4
SLOTS = 3
NEXT = b"next\n"


def continued(model: LanguageModel) -> list[int]:
    """Generate STEPS tokens: the first from all logits, the others from the best of each rank."""
    cache, tokens, found = model.make_caches(), mx.array([PROMPT]), []
    for step in range(STEPS):
        batch = Batch.at(cache[0].offset, *tokens.shape)  # type: ignore[arg-type]
        if step < STEPS // 3:
            token = mx.argmax(model(tokens, cache, batch=batch, last=1))
        else:
            token = first_of(model.best_tokens(tokens, batch, cache, 1 if step % 2 else 3))
        tokens = token.reshape(1, 1)
        found.append(int(token))
    return found


def in_chunks(model: LanguageModel) -> tuple[list[int], list[int]]:
    """Generate DRIVEN tokens after a prefill in three chunks, of which the last two have one token.

    In the second list, the last token is computed again after the cache was trimmed by one token.
    """
    caches, found, last = model.make_caches(), [], len(PROMPT) - 1
    for start, stop in ((0, last - 2), (last - 2, last - 1), (last - 1, last)):
        batch = Batch.at(start, 1, stop - start, "prefill")
        model.hidden(mx.array([PROMPT[start:stop]]), batch, caches)
    token = PROMPT[last]
    for at in range(last, last + DRIVEN):
        token = int(mx.argmax(model(mx.array([[token]]), caches, batch=Batch.at(at, 1, 1), last=1)))
        found.append(token)
    kept = last + DRIVEN - 1
    # A wrapped ring has lost tokens.
    if not all(layer_cache.can_trim(kept) for layer_cache in caches):
        return found, found
    for layer_cache in caches:
        layer_cache.trim(kept)
    best = model.best_tokens(mx.array([[found[-2]]]), Batch.at(kept, 1, 1), caches, 2)
    return found, [*found[:-1], int(first_of(best))]


def paged(model: LanguageModel) -> list[int]:
    """Generate DRIVEN tokens from copied pages, in a batch with the sequence that filled them."""
    hybrid = model.config.recurrent is not None
    pages, found = model.make_pages(9, PAGE, state_slots=SLOTS if hybrid else 0), []

    def table(*chunks: tuple[list[int], int, int]) -> PageTable:
        return PageTable.of(chunks, num_pages=9, page_size=PAGE)

    def states(*chunks: tuple[int, int, dict[int, int]]) -> StateTable | None:
        return StateTable.of(chunks, num_slots=SLOTS) if hybrid else None

    own, other, stop = [3, 1, 4], [2, 6, 5], len(PROMPT) - 1
    batch = Batch.paged(table((own, 0, stop)), "prefill", states((NO_STATE, stop, {stop: 2})))
    model.hidden(mx.array([PROMPT[:-1]]), batch, pages)
    model.copy_pages(pages, list(zip(own, other, strict=True)))
    token = PROMPT[-1]
    for at in range(stop, stop + DRIVEN):
        # Slot 2 has the state after the prompt. Then each sequence has a slot of its own.
        loads = (2, 2) if at == stop else (0, 1)
        slots = states(*((load, 1, {1: slot}) for slot, load in enumerate(loads)))
        batch = Batch.paged(table((own, at, at + 1), (other, at, at + 1)), "decode", slots)
        tokens = mx.array([[token], [token]])
        if at % 2:
            chosen = int(first_of(model.best_tokens(tokens, batch, pages, 3, indices=[1])))
        else:
            chosen = int(mx.argmax(model(tokens, pages, batch=batch, indices=[1])))
        token = chosen
        found.append(token)
    return found


def first_of(best: BestTokens) -> mx.array:
    """The best token of the first row."""
    return best.tokens[0, mx.argmax(best.scores[0])]


def bytes_read() -> int:
    """Bytes that the system has read for this process so far, from files and caches alike."""
    counters = Path("/proc/self/io")
    if not counters.exists():  # only Linux has this file
        return 0
    return int(dict(line.split(": ") for line in counters.read_text().splitlines())["rchar"])


def continued_after(
    folder: Path, ranks: RankCommunicator, channels: list[ControlChannel], split: Split
) -> dict[str, object]:
    """Load one checkpoint and continue the prompt; return the values of the JSON line."""
    config = QwenConfig.from_folder(folder)
    totals: list[int] = []
    before = bytes_read()
    weights, partitions = load_part(
        folder,
        config,
        ranks.rank,
        ranks.size,
        split=split,
        dtype=mx.float32,
        progress=lambda _, total: totals.append(total),
    )
    read = bytes_read() - before
    model = Qwen(config, weights, ops=MLX, groups=ParallelGroups.of(ranks, partitions))
    results: dict[str, object] = {"tokens": continued(model), "read": read, "total": totals[-1]}
    if ranks.rank:
        work(model, takewhile(lambda line: line != NEXT, channels[0].received()))
        return results
    driver = Driver(model, channels)
    found, again = in_chunks(driver)
    results |= {"in chunks": found, "trimmed": again, "paged": paged(driver)}
    for channel in channels:
        channel.send(NEXT)
    return results


def lost(rank: int, why: str) -> None:
    """Report a lost rank."""
    sys.stderr.write(f"rank {rank} {why}\n")


def main() -> None:
    """Continue the prompt with every checkpoint."""
    mx.set_default_device(mx.cpu)
    ranks = RankCommunicator(mx.distributed.init(strict=True, backend="ring"))
    split = Split.parse(sys.argv[1])
    channels = connect(ranks, lost)
    for folder in sys.argv[2:]:
        results = continued_after(Path(folder), ranks, channels, split)
        sys.stdout.write(json.dumps(results) + "\n")
    if ranks.rank:
        list(channels[0].received())  # wait until rank 0 has ended
    mx.synchronize()
    for channel in channels:
        channel.close()


if __name__ == "__main__":
    main()
