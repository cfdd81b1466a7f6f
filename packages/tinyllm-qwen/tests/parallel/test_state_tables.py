"""The driver sends the state tables of recurrent layers to the workers."""

from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_layers import Batch, LayerCache, RecurrentCache, RecurrentPool
from tinyllm_ops import MLX, NO_STATE, PageTable, StateTable
from tinyllm_qwen.checkpoint.weights import load_part, load_weights
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.bounded_cache import bounded
from tinyllm_qwen.parallel.command import CacheSpec, Forward, decode, encode
from tinyllm_qwen.parallel.control_channel import ControlChannel
from tinyllm_qwen.parallel.driver import Driver
from tinyllm_qwen.parallel.execute import execute
from tinyllm_qwen.testing.hybrid import hybrid_checkpoint

PAGES = {"num_pages": 6, "page_size": 4}
SLOTS = 5


class Recorder(ControlChannel):
    """A channel that records the lines instead of sending them."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, line: bytes) -> None:
        self.sent.append(line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with two key heads of two value heads each."""
    return hybrid_checkpoint(tmp_path_factory.mktemp("hybrid") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> Qwen:
    """An unpartitioned model."""
    config = QwenConfig.from_folder(folder)
    return Qwen(config, load_weights(folder, config), ops=MLX)


def test_a_worker_keeps_the_states_that_the_driver_keeps(model: Qwen) -> None:
    record = Recorder()
    driver = Driver(model, [record])
    pages = driver.make_pages(6, 4, state_slots=SLOTS)
    # Two prompts, of five tokens with a snapshot after four, and of two tokens.
    table = PageTable.of([([4, 1], 0, 5), ([2], 0, 2)], **PAGES)
    states = StateTable.of([(NO_STATE, 5, {4: 0, 5: 3}), (NO_STATE, 2, {2: 1})], num_slots=SLOTS)
    prompts = Batch.paged(table, "prefill", states)
    driver.hidden(mx.array([[1, 2, 3, 4, 5, 6, 7]]), prompts, pages)
    # Two draft tokens of the first text are rows of their own, and one sequence of states.
    table = PageTable.of([([4, 1], 5, 6), ([4, 1], 6, 7), ([2], 2, 3)], **PAGES)
    states = StateTable.of([(3, 2, {1: 3, 2: 4}), (1, 1, {1: 1})], num_slots=SLOTS)
    tokens, batch = mx.array([[8], [9], [10]]), Batch.paged(table, "decode", states)
    driver(tokens, pages, batch=batch, last=1)
    caches: dict[int, list[LayerCache]] = {}
    for line in record.sent:
        execute(model, caches, decode(line))  # type: ignore[arg-type]
    (theirs,) = caches.values()
    assert sum(isinstance(cache, RecurrentPool) for cache in pages) == 6
    for one, other in zip(pages, theirs, strict=True):
        assert type(one) is type(other)
        for array, copy in zip(one.arrays, other.arrays, strict=True):
            assert mx.array_equal(array, copy).item()


def test_a_state_table_arrives_as_it_was_sent() -> None:
    pages = PageTable.of([([4, 1], 0, 5), ([2], 0, 0), ([3], 1, 2)], **PAGES)
    states = StateTable.of([(NO_STATE, 5, {4: 0}), (2, 0, {}), (3, 1, {1: 3})], num_slots=SLOTS)
    spec = CacheSpec(num_pages=6, page_size=4, state_slots=SLOTS)
    batch = Batch.paged(pages, "prefill", states)
    line = encode(Forward(4, spec, tokens=[[1, 2, 3, 4, 5, 6]], batch=batch))
    assert b'"state_load_slots":[-1,2,3],"state_save_pairs":[[3,0],[5,3]]' in line
    arrived = decode(line)
    assert encode(arrived) == line
    assert arrived.batch is not None
    theirs = arrived.batch.state_table
    assert theirs is not None
    assert (theirs.cu_seqlens, theirs.load_slots) == (states.cu_seqlens, states.load_slots)
    assert (theirs.save_slots, theirs.num_slots) == (states.save_slots, states.num_slots)


def test_wrong_tables_are_refused_before_the_workers_hear_of_them(model: Qwen) -> None:
    record = Recorder()
    driver = Driver(model, [record])
    pages, tokens = driver.make_pages(6, 4, state_slots=SLOTS), mx.array([[1, 2]])
    sent = len(record.sent)
    table = PageTable.of([([0], 0, 2)], **PAGES)
    with pytest.raises(ValueError, match="of 5 slots, got no table: pass `state_table`"):
        driver.hidden(tokens, Batch.paged(table, "prefill"), pages)
    states = StateTable.of([(NO_STATE, 2, {2: 0})], num_slots=4)
    with pytest.raises(ValueError, match="of 5 slots, got one of 4: pass `state_table`"):
        driver.hidden(tokens, Batch.paged(table, "prefill", states), pages)
    assert len(record.sent) == sent


def test_a_rank_keeps_the_states_of_its_own_heads(folder: Path, model: Qwen) -> None:
    config = model.config
    weights, partitions = load_part(folder, config, 1, 2)
    assert weights["layers.0.linear_attn.A_log"].shape == (2,)
    whole = load_weights(folder, config)
    for name, rows in (
        ("conv1d.weight", [*range(32, 64), *range(96, 128), *range(192, 256)]),
        ("in_proj_qkv.weight", [*range(32, 64), *range(96, 128), *range(192, 256)]),
        ("in_proj_z.weight", [*range(64, 128)]),
        ("dt_bias", [2, 3]),
    ):
        own, all_rows = (part[f"layers.0.linear_attn.{name}"] for part in (weights, whole))
        assert isinstance(own, mx.array)
        assert isinstance(all_rows, mx.array)
        assert mx.array_equal(own, all_rows[mx.array(rows)]).item()
    assert config.recurrent is not None
    states = [part.local_recurrent(config.recurrent) for part in partitions]
    assert [sizes.num_value_heads for sizes in states] == [2, 2]


def test_a_limit_of_tokens_needs_an_attention_layer_on_rank_0(model: Qwen) -> None:
    with pytest.raises(ValueError, match=r"max_size: .* attention layer on rank 0"):
        bounded([RecurrentCache()], model.config, max_size=100)
