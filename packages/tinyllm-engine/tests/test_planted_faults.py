"""Random schedules find faults that are planted in the engine, one at a time.

Half of the schedules have a draft model whose draft tokens are wrong.
"""

from dataclasses import replace

import mlx.core as mx
import pytest
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import RequestState
from tinyllm_engine.runner import Runner
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.testing import Oracle, run_schedule, with_fault
from tinyllm_qwen import Qwen, Sampler, Tokenizer
from tinyllm_qwen.checkpoint.schema import expected_shapes

SEEDS = 60

Fault = tuple[object, str, str, str]
FAULTS: dict[str, Fault] = {
    "a shared last page is not copied": (
        Scheduler,
        "_allocate",
        "self._copies[allocated[0]] = copied",
        "pass",
    ),
    "a shared last page is written": (
        Scheduler,
        "_allocate",
        "copied = found.pop() if len(found) * manager.page_size == length else None",
        "copied = None",
    ),
    "a prefix counts one token too many": (
        Scheduler,
        "_allocate",
        "request.num_computed_tokens = len(found) * manager.page_size",
        "request.num_computed_tokens = len(found) * manager.page_size + bool(found)",
    ),
    "a page is registered before it is full": (
        Scheduler,
        "update",
        "range(request.num_computed_tokens // page_size, end // page_size)",
        "range(min(len(request.block_table), len(request.block_hashes(page_size))))",
    ),
    "a cached page is evicted while it is held": (
        BlockManager,
        "acquire",
        "self._cached.pop(page, None)",
        "pass",
    ),
    "the second holder of a page is not counted": (
        BlockManager,
        "acquire",
        "self._holders[page] += 1",
        "self._holders[page] = 1",
    ),
    "an evicted page keeps its hash": (BlockManager, "_evict", "self._unregister(page)", "pass"),
    "a page is not freed": (BlockManager, "free", "reversed(pages)", "reversed(pages[1:])"),
    "a decoded token does not see itself": (Runner, "decode", "at, at + 1)", "at - 1, at)"),
    "a draft token is accepted unseen": (
        RequestState,
        "accept",
        "or token != expected",
        "or expected is None",
    ),
    "a sampler does not go back after a draft": (
        Sampler,
        "ahead",
        "copy.copy(samplers[-1])",
        "samplers[-1]",
    ),
}


@pytest.fixture(scope="module")
def wrong_drafts(pico: tuple[Qwen, Tokenizer]) -> Qwen:
    """Return a draft model of one layer with random weights."""
    config = replace(pico[0].config, num_hidden_layers=1)
    mx.random.seed(1)
    shapes = expected_shapes(config).items()
    weights = {name: 0.1 * mx.random.normal(shape) for name, shape in shapes}
    return Qwen(config, weights, ops=pico[0].ops)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_random_schedules_find_the_fault(
    pico: tuple[Qwen, Tokenizer],
    prompts: list[list[int]],
    generated: Oracle,
    wrong_drafts: Qwen,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    owner, name, old, new = FAULTS[fault]
    monkeypatch.setattr(owner, name, with_fault(getattr(owner, name), old, new))
    for seed in range(SEEDS):
        try:
            draft_model = wrong_drafts if seed % 2 else None
            run_schedule(*pico, prompts, generated, seed, draft_model=draft_model)
        except (AssertionError, ValueError, IndexError, KeyError):
            return
    pytest.fail(f"{SEEDS} schedules pass with the fault")
