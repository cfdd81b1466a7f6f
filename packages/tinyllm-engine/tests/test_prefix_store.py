"""The prefix cache survives a restart, and an invalid file does not stop the engine."""

import asyncio
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_engine import AsyncEngine, Engine, EngineSettings, Request, RequestState
from tinyllm_engine.kv.file_replacement import remove_leftovers
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.kv.prefix_store import model_fingerprint
from tinyllm_ops import QuantizedTensor
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer, load
from tinyllm_qwen.checkpoint.safetensors_writer import SafetensorsWriter

Model = tuple[Qwen, Tokenizer]
Generated = Callable[[Sequence[int], int, SamplingParams], list[int]]

SETTINGS = EngineSettings(8, kv_cache_memory_bytes=1 << 24)  # pages of 8 tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "prefixes"


def answer(handle: RequestState) -> list[int]:
    return handle.tokens[len(handle.prompt) :]


def ask(engine: Engine, prompts: list[list[int]]) -> list[RequestState]:
    handles = [engine.add(Request(prompt, 12)) for prompt in prompts]
    while engine.has_work:
        engine.step()
    return handles


@pytest.mark.parametrize("bits", [None, 8])
def test_the_next_engine_loads_the_prefix_cache(
    pico: Model, prompts: list[list[int]], path: Path, bits: int | None
) -> None:
    settings = replace(SETTINGS, kv_bits=bits, prefix_cache_path=path)
    first = Engine(*pico, settings)
    wanted = [answer(handle) for handle in ask(first, prompts)]
    saved = first.save_prefixes()
    assert saved == first.stats.pages_cached > 10
    second = Engine(*pico, settings)
    assert second.stats.pages_cached == saved
    handles = ask(second, prompts)
    assert [answer(handle) for handle in handles] == wanted
    for handle in handles:
        length = len(handle.prompt)
        # The model computes at least the last token of a prompt.
        assert handle.usage.cached_tokens == min(length // 8 * 8, length - 1)
    assert second.stats.pages_used == 0


@pytest.mark.parametrize("cap", [None, 7])
def test_pages_and_their_order_of_eviction_are_restored_exactly(
    pico: Model, prompts: list[list[int]], path: Path, cap: int | None
) -> None:
    first = Engine(*pico, SETTINGS)
    ask(first, prompts)
    running = first.add(Request(prompts[3], 30, ignore_end=True))
    for _ in range(20):
        first.step()
    assert running.finish_reason is None
    saved = first.save_prefixes(path)
    assert saved > first.stats.pages_cached  # the pages that the running request holds are saved
    limit = None if cap is None else cap * PagePool(pico[0], SETTINGS).page_bytes
    second = Engine(
        *pico, replace(SETTINGS, prefix_cache_path=path, prefix_cache_memory_bytes=limit)
    )
    before, after = (
        list(first._block_manager.registered().items()),
        list(second._block_manager.registered().items()),
    )
    before = before[-len(after) :]  # the page to evict first comes first
    assert len(after) == (cap or saved)
    assert [key for key, _ in before] == [key for key, _ in after]
    # A request holds its pages, and a page is of no use without those before it in the text. So the
    # first page of the running request is the last to evict.
    assert before[-1][1] == running.block_table[0]
    pages = [mx.array([page for _, page in named]) for named in (before, after)]
    for old, new in zip(first._runner._caches, second._runner._caches, strict=True):
        for kept, restored in zip(old.arrays, new.arrays, strict=True):
            assert mx.array_equal(kept[pages[0]], restored[pages[1]])


def test_the_limit_keeps_the_most_recently_used_pages(
    pico: Model, prompts: list[list[int]], path: Path
) -> None:
    first = Engine(*pico, SETTINGS)
    ask(first, [prompts[6]])
    ask(first, [prompts[3]])
    everything = first.save_prefixes(path)
    page = PagePool(pico[0], SETTINGS).page_bytes
    capped = replace(SETTINGS, prefix_cache_path=path, prefix_cache_memory_bytes=5 * page + 1)
    second = Engine(*pico, capped)
    assert second.stats.pages_cached == 5 < everything
    assert second.save_prefixes() == 5
    (handle,) = ask(second, [prompts[3]])
    assert handle.usage.cached_tokens >= min(len(prompts[3]) // 8, 5) * 8
    small = replace(SETTINGS, prefix_cache_path=path, kv_cache_memory_bytes=3 * page)
    assert Engine(*pico, small).stats.pages_cached == 3
    none = replace(SETTINGS, prefix_cache_path=path, prefix_cache_memory_bytes=0)
    assert Engine(*pico, none).stats.pages_cached == 0
    with pytest.raises(
        ValueError, match=r"^prefix_cache_path: expected None, got '.*': set enable"
    ):
        replace(SETTINGS, prefix_cache_path=path, enable_prefix_caching=False)


def test_pages_of_another_model_or_layout_are_ignored(
    pico: Model, prompts: list[list[int]], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Engine(*pico, SETTINGS)
    ask(first, prompts[:2])
    first.save_prefixes(path)
    settings = replace(SETTINGS, prefix_cache_path=path)
    other = load("pico", ops=pico[0].ops, dtype=mx.float32)[0]
    layers = list(other.layers)
    # The other model differs in the scales of one matrix.
    w_down = layers[2].mlp.w_down
    mlp = replace(layers[2].mlp, w_down=replace(w_down, scales=w_down.scales * 1.01))  # type: ignore[type-var]
    layers[2] = replace(layers[2], mlp=mlp)
    other.layers = tuple(layers)
    engines = [
        Engine(other, pico[1], settings),
        Engine(*pico, replace(settings, page_size=16)),
        Engine(*pico, replace(settings, kv_bits=8)),
    ]
    for engine in engines:
        assert engine.stats.pages_cached == 0
        ask(engine, prompts[:1])
    assert len(caplog.records) == len(engines)
    assert all("of another model" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    "damage", ["truncated", "empty", "text", "one bit", "folder", "other file"]
)
def test_a_damaged_file_is_logged_and_ignored(
    pico: Model, prompts: list[list[int]], path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    first = Engine(*pico, SETTINGS)
    ask(first, prompts[:2])
    first.save_prefixes(path)
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "other file":
        mx.save_safetensors(f"{path}.safetensors", {"x": mx.zeros(3)})
        Path(f"{path}.safetensors").rename(path)
    else:
        if damage == "one bit":
            data[-100] ^= 1
        lengths = {"truncated": len(data) - 50, "empty": 0, "one bit": len(data)}
        path.write_bytes(data[: lengths[damage]] if damage in lengths else b"hello, world\n" * 9)
    engine = Engine(*pico, replace(SETTINGS, prefix_cache_path=path))
    assert engine.stats.pages_cached == 0
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.message
    ask(engine, prompts[:1])


def test_a_failed_write_is_logged_and_leaves_the_old_file(
    pico: Model,
    prompts: list[list[int]],
    path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine(*pico, replace(SETTINGS, prefix_cache_path=path))
    assert engine.save_prefixes() == 0  # no page is cached yet
    assert not path.exists()
    ask(engine, prompts[:2])
    saved = engine.save_prefixes()
    old = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) // 2, limits[1]))  # as a full disk
    try:
        assert engine.save_prefixes() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{path}: prefixes were not saved: [Errno 27] File too large" in caplog.text
    assert engine.save_prefixes(path / "below a file") == 0
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == old
    assert Engine(*pico, replace(SETTINGS, prefix_cache_path=path)).stats.pages_cached == saved
    with pytest.raises(ValueError, match="prefix_cache_path"):
        Engine(*pico).save_prefixes()


def test_saving_and_loading_need_memory_for_one_array_at_a_time(
    pico: Model, prompts: list[list[int]], path: Path
) -> None:
    settings = replace(SETTINGS, prefix_cache_path=path, kv_cache_memory_bytes=3 << 20)
    first = Engine(*pico, settings)
    ask(first, prompts)
    second = Engine(*pico, settings)

    def peak(action: Callable[[], int]) -> int:
        """Return the most bytes that MLX held at once, beyond those before."""
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        assert action() > 10
        return mx.get_peak_memory() - before

    array = max(each.nbytes for cache in first._runner._caches for each in cache.arrays)
    assert peak(first.save_prefixes) < 2 * array
    assert path.stat().st_size > 5 * array
    assert peak(lambda: second._prefixes.load(path)) < 3 * array  # the rows, and a new array


def test_temporary_files_of_killed_processes_are_removed(
    pico: Model, prompts: list[list[int]], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from tinyllm_engine.kv.file_replacement import replacement\n"
        "with replacement(pathlib.Path(sys.argv[1])) as partial:\n"
        "    partial.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )

    def kill_a_writer() -> None:
        subprocess.run([sys.executable, "-c", program, str(path)], check=False)
        assert len([*path.parent.iterdir()]) == 1 + path.exists()

    kill_a_writer()
    engine = Engine(*pico, replace(SETTINGS, prefix_cache_path=path))
    assert not [*path.parent.iterdir()]
    ask(engine, prompts[:2])
    kill_a_writer()
    write, names = SafetensorsWriter.write, set[str]()

    def write_while_others_start(self: SafetensorsWriter, name: str, array: mx.array) -> None:
        """Write a tensor. The file of the running save must stay."""
        remove_leftovers(path)
        write(self, name, array)
        names.update(each.name for each in path.parent.iterdir())

    monkeypatch.setattr(SafetensorsWriter, "write", write_while_others_start)
    assert engine.save_prefixes() > 0
    assert len(names) == 1
    assert [*path.parent.iterdir()] == [path]


def test_a_draft_model_computes_the_pages_of_a_file(
    pico: Model, prompts: list[list[int]], path: Path, generated: Generated
) -> None:
    first = Engine(*pico, SETTINGS)
    ask(first, prompts)
    first.save_prefixes(path)
    # The file has the keys and values of the model only, so the draft model computes its own.
    engine = Engine(
        *pico,
        replace(SETTINGS, prefix_cache_path=path, num_speculative_tokens=3),
        draft_model=pico[0],
    )
    for handle in ask(engine, prompts):
        assert answer(handle) == generated(handle.prompt, 12, SamplingParams())
    assert engine.stats.cached_tokens > 0
    assert engine.stats.accepted_tokens > 0


def test_closing_saves_the_prefix_cache(pico: Model, prompts: list[list[int]], path: Path) -> None:
    async def serve() -> int:
        settings = replace(SETTINGS, prefix_cache_path=path)
        engine = AsyncEngine(lambda: Engine(*load("pico"), settings))
        await engine.start()
        kept = engine.stats.pages_cached
        async for _ in engine.stream(Request(prompts[6], 2)):
            pass
        await engine.close()
        return kept

    assert asyncio.run(serve()) == 0
    assert asyncio.run(serve()) > 0


def test_models_differ_in_their_fingerprints(pico: Model) -> None:
    twin = load("pico", ops=pico[0].ops, dtype=mx.float32)[0]
    assert model_fingerprint(twin) == model_fingerprint(pico[0])
    assert model_fingerprint(load("pico", dtype=mx.bfloat16)[0]) != model_fingerprint(twin)
    other = load("pico", ops=replace(twin.ops, name="other"), dtype=mx.float32)[0]
    assert model_fingerprint(other) != model_fingerprint(twin)
    twin.norm = replace(twin.norm, weight=twin.norm.weight + mx.array([1.0] + [0.0] * 255))
    assert model_fingerprint(twin) != model_fingerprint(pico[0])


@pytest.mark.parametrize("index", [1, 30_001, -1])
def test_one_changed_word_of_a_weight_changes_the_fingerprint(pico: Model, index: int) -> None:
    twin = load("pico", ops=pico[0].ops, dtype=mx.float32)[0]
    table = twin.embed_tokens.weight
    assert isinstance(table, QuantizedTensor)
    words = table.packed.flatten()
    words[index] = words[index] ^ 1
    packed = replace(table, packed=words.reshape(table.packed.shape))
    twin.embed_tokens = replace(twin.embed_tokens, weight=packed)
    assert model_fingerprint(twin) != model_fingerprint(pico[0])


def test_a_named_pipe_is_refused_and_not_awaited(
    pico: Model, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    assert Engine(*pico, replace(SETTINGS, prefix_cache_path=path)).stats.pages_cached == 0
    assert "expected a file, found a named pipe" in caplog.text


def test_several_ranks_cannot_keep_prefixes_in_a_file(
    pico: Model, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setattr(Qwen, "num_ranks", 2)
    reason = "got 2 ranks: leave it out, and do not call save_prefixes"
    with pytest.raises(ValueError, match=f"prefix_cache_path: expected no file .* {reason}"):
        Engine(*pico, EngineSettings(prefix_cache_path=path))
    with pytest.raises(ValueError, match=reason):
        Engine(*pico).save_prefixes(path)
