"""Workers execute the driver's commands."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_layers import (
    Batch,
    Communicator,
    DecoderLayer,
    KVCache,
    LayerCache,
    PagedCache,
    RotatingCache,
)
from tinyllm_layers.cache.dense import CAPACITY_STEP
from tinyllm_ops import MLX, PageTable
from tinyllm_qwen.caches import make_caches
from tinyllm_qwen.checkpoint.weights import load_part, load_weights
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel import driver as driver_module
from tinyllm_qwen.parallel import execute as execute_module
from tinyllm_qwen.parallel.bounded_cache import BoundedCache, bounded
from tinyllm_qwen.parallel.command import CacheSpec, Forward, decode, encode
from tinyllm_qwen.parallel.control_channel import ControlChannel
from tinyllm_qwen.parallel.driver import Driver
from tinyllm_qwen.parallel.execute import Result, result_arrays, work
from tinyllm_qwen.partition.groups import ParallelGroups
from tinyllm_qwen.partition.partition import Partition
from tinyllm_qwen.partition.split import Split

GOLDEN = Path(__file__).parents[1] / "goldens" / "models" / "qwen3"


@pytest.fixture
def model() -> Qwen:
    """An unpartitioned model: the driver and a worker have equal results without communication."""
    config = QwenConfig.from_folder(GOLDEN)
    return Qwen(config, load_weights(GOLDEN, config), ops=MLX)


class Recorder(ControlChannel):
    """A channel that records the lines instead of sending them."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, line: bytes) -> None:
        self.sent.append(line)

    @property
    def commands(self) -> list[Forward]:
        return [decode(line) for line in self.sent]


class Worked:
    """Record of the results, cache offsets and caches of a worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.results: list[Result] = []
        self.offsets: list[list[int]] = []
        self.caches: dict[int, Sequence[LayerCache]] = {}

        def execute(
            model: Qwen, caches: dict[int, Sequence[LayerCache]], forward: Forward
        ) -> Result:
            result = original(model, caches, forward)
            self.caches = caches
            self.results.append(result)
            own = caches[forward.cache]
            self.offsets.append([cache.offset for cache in own if isinstance(cache, KVCache)])
            return result

        original = execute_module.execute
        monkeypatch.setattr(execute_module, "execute", execute)


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Worked:
    return Worked(monkeypatch)


def assert_equal(ours: Result, theirs: Result) -> None:
    for one, other in zip(result_arrays(ours), result_arrays(theirs), strict=True):
        assert mx.array_equal(one, other)


def test_a_driver_has_the_results_of_its_model(model: Qwen) -> None:
    driver: LanguageModel = Driver(model, [])
    tokens, batch = mx.array([[1, 2, 3], [4, 5, 6]]), Batch.at(0, 2, 3)
    assert_equal(driver(tokens), model(tokens))
    assert_equal(driver(tokens, indices=[4, 1]), model(tokens, indices=[4, 1]))
    assert_equal(
        driver.hidden(tokens, batch, driver.make_caches()),
        model.hidden(tokens, batch, model.make_caches()),
    )
    assert_equal(
        driver.best_tokens(tokens, batch, driver.make_caches(), 3, indices=[2]),
        model.best_tokens(tokens, batch, model.make_caches(), 3, indices=[2]),
    )
    assert driver.page_bytes(8, kv_bits=8) == model.page_bytes(8, kv_bits=8)
    for name in ("config", "ops", "dtype", "norm", "num_caches", "num_ranks", "nbytes"):
        assert getattr(driver, name) is getattr(model, name) or getattr(driver, name) == getattr(
            model, name
        )
    assert all(own is its for own, its in zip(driver.weights(), model.weights(), strict=True))
    assert len(driver.layer_caches(driver.make_caches())) == driver.num_caches


def test_a_worker_computes_what_the_driver_computes(model: Qwen, worked: Worked) -> None:
    record = Recorder()
    driver = Driver(model, [record])
    first, second = driver.make_caches(), driver.make_caches(max_size=16)
    results: list[Result] = [driver(mx.array([[1, 2, 3]]), first, last=1)]
    for cache in first:
        cache.trim(1)
    results.append(driver.best_tokens(mx.array([[4]]), Batch.at(1, 1, 1, "decode"), first, 2))
    results.append(driver(mx.array([[5, 6], [7, 8]]), second))
    # A prompt chunk of one token is a prefill, not a decode step.
    results.append(driver.hidden(mx.array([[9]]), Batch.at(2, 1, 1, "prefill"), first))
    results.append(driver(mx.array([[1], [2]]), second, indices=[1]))
    assert [len(record.sent), [command.batch.phase for command in record.commands]] == [
        5,
        ["prefill", "decode", "prefill", "prefill", "decode"],
    ]
    work(model, record.sent)
    layers = driver.num_caches
    assert worked.offsets == [[offset] * layers for offset in (3, 2, 2, 3, 3)]
    for ours, theirs in zip(results, worked.results, strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_a_worker_keeps_the_pages_that_the_driver_keeps(
    kv_bits: int | None, model: Qwen, worked: Worked
) -> None:
    record = Recorder()
    driver = Driver(model, [record])
    driver.make_pages(1, 4)  # without a reference, these pages are freed at once
    pages = driver.make_pages(6, 4, kv_bits=kv_bits)
    size = {"num_pages": 6, "page_size": 4}
    # Two prompts side by side, of five tokens in two pages and of two in one.
    table = PageTable.of([([4, 1], 0, 5), ([2], 0, 2)], **size)
    driver.hidden(mx.array([[1, 2, 3, 4, 5, 6, 7]]), Batch.paged(table, "prefill"), pages)
    driver.copy_pages(pages, [(1, 3), (2, 5)])
    # The first sequence continues in its copied page. The head scores two of the three rows.
    table = PageTable.of([([4, 3], 5, 6), ([5], 2, 3), ([5], 3, 4)], **size)
    tokens, batch = mx.array([[8], [9], [10]]), Batch.paged(table, "decode")
    scores = driver(tokens, pages, batch=batch, indices=[0, 2])
    assert len(scores) == 2
    work(model, record.sent)
    (theirs,) = worked.caches.values()
    for one, other in zip(pages, theirs, strict=True):
        assert isinstance(other, PagedCache)
        for array, copy in zip(one.arrays, other.arrays, strict=True):
            assert mx.array_equal(array, copy)
    assert_equal(scores, worked.results[-1])


class Silent(Communicator):
    """Communicator of one rank, which fails the test if the rank communicates."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_gather(self, part: mx.array) -> mx.array:
        raise AssertionError("a rank communicates")

    all_reduce = all_gather


def test_every_rank_knows_the_pages_of_the_rank_with_most_layers() -> None:
    folder = GOLDEN.with_name("qwen3-moe-mixed")
    config, found = QwenConfig.from_folder(folder), []
    for rank in range(2):
        weights, partitions = load_part(
            folder, config, rank, 2, split=Split(by_layers=True, layers=(1, 2))
        )
        groups = ParallelGroups.of(Silent(rank, 2), partitions)
        found.append(Qwen(config, weights, groups=groups).page_bytes(4))
    whole = Qwen(config, load_weights(folder, config)).page_bytes(4)
    assert found == [whole * 2 // 3] * 2


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_rank_0_goes_back_no_further_than_the_windows_of_other_ranks(kv_bits: int | None) -> None:
    folder = GOLDEN.with_name("qwen2-sliding")
    config = replace(QwenConfig.from_folder(folder), head_dim=32)
    assert config.sliding_window is not None
    size = config.sliding_window.size
    whole = make_caches(config, Partition.whole(config), kv_bits=kv_bits)
    full = [cache for cache in whole if not isinstance(cache, RotatingCache)]
    assert len(full) == 1
    kinds = list(map(type, bounded(whole, config, kv_bits=kv_bits)))
    assert kinds == list(map(type, whole))  # this rank holds the sliding layer itself
    (cache,) = bounded(full, config, kv_bits=kv_bits)
    assert isinstance(cache, BoundedCache)
    cache.set_expected_length(3 * CAPACITY_STEP)
    for _ in range(size):
        cache.update(mx.ones((1, 2, 1, 32)), mx.ones((1, 2, 1, 32)))
    assert cache.arrays[0].shape[-2] == 3 * CAPACITY_STEP
    assert cache.can_trim(size - 1)
    twin = cache.fork()
    cache.update(mx.ones((1, 2, 1, 32)), mx.ones((1, 2, 1, 32)))
    assert not cache.can_trim(size)
    assert cache.can_trim(size + 1)
    assert [cache.trimmable(length) for length in (size, size + 1)] == [0, size + 1]
    with pytest.raises(ValueError, match="expected a prefix that all ranks still hold"):
        cache.trim(size)
    twin.trim(size - 1)
    assert (cache.offset, twin.offset) == (size + 1, size - 1)
    assert sum(array.nbytes for array in cache.arrays) == cache.nbytes > 0


def test_pages_are_made_in_memory_on_all_ranks(model: Qwen, worked: Worked) -> None:
    record = Recorder()
    pages = Driver(model, [record]).make_pages(3, 4)
    (command,) = record.commands
    assert (command.spec, command.tokens) == (CacheSpec(num_pages=3, page_size=4), ())
    before = mx.get_active_memory()
    work(model, record.sent)
    used = sum(layer.nbytes for layer in pages)
    assert mx.get_active_memory() - before >= used
    assert worked.results == [None]


def test_dropped_caches_are_dropped_everywhere(model: Qwen, worked: Worked) -> None:
    record = Recorder()
    driver = Driver(model, [record])
    driver.make_caches()  # never used: the workers do not know these caches
    for _ in range(2):
        caches = driver.make_caches()
        driver(mx.array([[1]]), caches)
        del caches
    driver(mx.array([[1]]))
    assert [command.dropped for command in record.commands] == [[0], [1], [2]]
    work(model, record.sent)
    assert list(worked.caches) == [3]


def test_a_pass_starts_after_the_previous_one_has_ended(
    model: Qwen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX writes to caches in place only if no running pass reads them."""
    driver = Driver(model, [])
    caches = driver.make_caches()
    events = list[object]()

    def recorded(event: Callable[..., object], call: Callable[..., Any]) -> Callable[..., Any]:
        def recording(*arguments: Any) -> Any:
            events.append(event(*arguments))
            return call(*arguments)

        return recording

    monkeypatch.setattr(mx, "eval", recorded(lambda arrays: arrays, mx.eval))
    execute = recorded(lambda *_: "execute", execute_module.execute)
    monkeypatch.setattr(driver_module, "execute", execute)
    unread = driver.hidden(mx.array([[1, 2, 3]]), Batch.at(0, 1, 3), caches)
    driver.hidden(mx.array([[4]]), Batch.at(3, 1, 1, "decode"), caches)
    assert events == [[], "execute", [unread], "execute"]


def test_an_interrupted_pass_ends_the_driver(model: Qwen, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(model, [Recorder()])
    caches = driver.make_caches()

    def interrupted(*_: object) -> mx.array:
        raise KeyboardInterrupt

    monkeypatch.setattr(DecoderLayer, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver(mx.array([[1]]), caches)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"out of step, .*: restart the program"):
        driver(mx.array([[1]]), caches)


def test_wrong_arguments_are_refused_before_the_workers_hear_of_them(model: Qwen) -> None:
    record = Recorder()
    driver = Driver(model, [record])
    cache, pages, tokens = driver.make_caches(), driver.make_pages(4, 4), mx.array([[1, 2]])
    sent = len(record.sent)
    with pytest.raises(ValueError, match="caches, made by this model's make_caches or make_pages"):
        driver(tokens, model.make_caches())
    with pytest.raises(ValueError, match="caches, made by this model's make_caches or make_pages"):
        driver(tokens, cache[:1])
    with pytest.raises(ValueError, match=r"last: expected 1 to 2 positions, got 3"):
        driver(tokens, cache, last=3)
    with pytest.raises(ValueError, match=r"k: expected 1 to"):
        driver.best_tokens(tokens, Batch.at(0, 1, 2), cache, 0)
    with pytest.raises(ValueError, match=r"tokens: expected the batch's shape \(1, 3\)"):
        driver.hidden(tokens, Batch.at(0, 1, 3), cache)
    table = PageTable.of([([0], 0, 2)], num_pages=4, page_size=4)
    with pytest.raises(ValueError, match=r"expected `Batch.at` for caches of one sequence"):
        driver.hidden(tokens, Batch.paged(table, "prefill"), cache)
    with pytest.raises(ValueError, match="expected a table of 4 pages of 4 tokens, got none"):
        driver.hidden(tokens, Batch.at(0, 1, 2), pages)
    other = PageTable.of([([0], 0, 2)], num_pages=5, page_size=4)
    with pytest.raises(ValueError, match="4 pages of 4 tokens, got 5 of 4"):
        driver.hidden(tokens, Batch.paged(other, "prefill"), pages)
    with pytest.raises(ValueError, match="expected positions by number, got an array"):
        driver.hidden(tokens, Batch("prefill", 1, 2, mx.array([0, 1])), cache)
    assert isinstance(cache[0], KVCache)
    cache[0].update(mx.zeros((1, 2, 1, 8)), mx.zeros((1, 2, 1, 8)))
    with pytest.raises(ValueError, match="expected equally many tokens in every layer"):
        driver.hidden(tokens, Batch.at(0, 1, 2), cache)
    assert len(record.sent) == sent
    driver(tokens)  # all ranks are still in step


TABLE = PageTable([[1, 0], range(2, 4)], range(3), (3, 7), [6, 14], num_pages=100, page_size=4)


@pytest.mark.parametrize(
    "forward",
    [
        Forward(3, CacheSpec(max_size=16)),
        Forward(4, CacheSpec(kv_bits=8, num_pages=100, page_size=4), copies=[(1, 2), (3, 4)]),
        Forward(1, dropped=[0, 2], length=7, tokens=[[1, 2]], batch=Batch.at(7, 1, 2)),
        Forward(
            1, length=0, tokens=[[1]], batch=Batch.at(0, 1, 1, "prefill"), output="logits", last=1
        ),
        Forward(1, tokens=[[1], [2]], batch=Batch.at(5, 2, 1), output="best", k=20, indices=[]),
        Forward(
            4,
            CacheSpec(num_pages=100, page_size=4),
            tokens=[[1], [2]],
            batch=Batch.paged(TABLE, "decode"),
            output="logits",
            indices=[1],
        ),
    ],
)
def test_a_command_arrives_as_it_was_sent(forward: Forward) -> None:
    line = encode(forward)
    assert line.count(b"\n") == 1
    arrived = decode(line)
    assert encode(arrived) == line
    for name in ("cache", "spec", "length", "output", "last", "indices", "k"):
        assert getattr(arrived, name) == getattr(forward, name)
    assert (list(arrived.dropped), list(arrived.copies)) == ([*forward.dropped], [*forward.copies])
    assert [list(row) for row in arrived.tokens] == [list(row) for row in forward.tokens]
    ours, theirs = forward.batch, arrived.batch
    assert (ours is None) == (theirs is None)
    if ours is None or theirs is None:
        return
    assert (ours.phase, ours.rows, ours.length) == (theirs.phase, theirs.rows, theirs.length)
    if ours.page_table is None:
        assert ours.positions == theirs.positions
        return
    assert theirs.page_table is not None
    assert [list(row) for row in theirs.page_table.block_tables] == [[1, 0], [2, 3]]
    assert (list(theirs.page_table.positions), list(theirs.page_table.slot_mapping)) == (
        [2, 6],
        [6, 14],
    )


def test_a_decode_step_is_a_short_line() -> None:
    batch = Batch.at(17, 1, 1)
    line = encode(Forward(0, length=17, tokens=[[44]], batch=batch, output="best"))
    assert json.loads(line) == {
        "cache": 0,
        "length": 17,
        "tokens": [[44]],
        "output": "best",
        "phase": "decode",
        "offset": 17,
    }


@pytest.mark.parametrize("line", [b"[]\n", b'{"cache": 0, "leave": 1}\n', b"{}\n", b"hello\n"])
def test_an_unknown_command_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="do all ranks run the same version"):
        decode(line)
