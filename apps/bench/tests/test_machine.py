"""Machine, memory and ceilings."""

import importlib.metadata
import os
import platform
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tinyllm_bench import ceilings, machine
from tinyllm_bench.ceilings import measure_ceilings
from tinyllm_bench.cost import product_flops
from tinyllm_bench.errors import BenchError
from tinyllm_bench.machine import (
    Machine,
    check_memory,
    largest_cache,
    read_cpuinfo,
)
from tinyllm_bench.models.model import needed_memory
from tinyllm_bench.models.weight_format import WeightFormat
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config
from tinyllm_kernels import available
from tinyllm_qwen import QwenConfig

PRESENT = {backend.name for backend in available() if backend.present}


def test_cpuinfo_of_the_first_core_is_read() -> None:
    core = "processor\t: {}\nmodel name\t: A CPU @ 2: fast\nflags\t\t: fpu avx2 amx_tile\n"
    fields = read_cpuinfo("\n".join([core.format(0), core.format(1)]))
    assert fields["processor"] == "0"
    assert fields["model name"] == "A CPU @ 2: fast"
    assert fields["flags"].split() == ["fpu", "avx2", "amx_tile"]


def test_the_largest_cache_is_found(tmp_path: Path) -> None:
    for index, size in enumerate(["48K", "2048K", "32M"]):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "size").write_text(f"{size}\n")
    assert largest_cache(tmp_path) == 32 << 20
    assert largest_cache(tmp_path / "none") == 0


def test_this_machine_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: A CPU\nflags\t\t: sse2 fma avx2 smep amx_tile\n")
    monkeypatch.setattr(machine, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    here = Machine.here()
    assert here.isa == ("amx_tile", "avx2", "fma")
    assert here.memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert here.mlx == importlib.metadata.version("mlx")
    if here.device == "cpu":
        system = f"{platform.system()} {platform.machine()}"
        assert str(here) == f"A CPU, 3 cores, {system}, MLX {here.mlx}"


def test_ceilings_are_bytes_and_operations_of_the_fastest_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The clock is read at the start, at the start and end of each pass, and after a pass.
    times = iter([0.0, 0.0, 4.0, 4.0, 4.0, 6.0, 6.0, 6.0, 9.0, 10.0] * 2)
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    here = replace(Machine.here(), device="cpu", cores=2)
    measured = measure_ceilings(here, 10.0)
    assert measured.read_gbps == pytest.approx((1 << 16) / 2.0 / 1e9)
    assert measured.tflops == pytest.approx(product_flops(64, 64, 64) / 2.0 / 1e12)
    assert measured.read_how == "largest of 0 MiB of int32, NumPy, 2 threads"
    assert measured.tflops_how == "float32 product of 64 x 64, NumPy's BLAS"


def test_a_quarter_of_free_memory_is_read_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ceilings, "_READ_BYTES", 1 << 30)
    monkeypatch.setattr(ceilings, "available_memory", lambda gpu: 64 << 20)
    how = measure_ceilings(Machine.here(), 1e-4).read_how
    assert how.startswith("largest of 16 MiB of int32")


def test_too_little_memory_is_refused_with_advice() -> None:
    with pytest.raises(BenchError, match=r"x needs 9\.0 GB of memory, 8\.0 GB are free: .*--bits"):
        check_memory("x", 9_000_000_000, 8_000_000_000)
    check_memory("x", 8_000_000_000, 9_000_000_000)


@pytest.mark.parametrize(
    ("bits", "ops", "least"),
    [
        (16, (), 2 * 4_022_468_096),
        (4, ("mlx",), 4_022_468_096 * 5 // 8),
        (4, ("reference",), 4_022_468_096 * 5 // 8 + 4 * 151936 * 2560),  # the head, dequantized
    ],
)
def test_a_model_needs_its_weights_and_room_to_compute(
    bits: int, ops: tuple[str, ...], least: int
) -> None:
    config = QwenConfig.from_hf(published_config("qwen3-4b"))
    weight_format = WeightFormat.choose(bits, 64, "affine", "auto", prefers_16_bits=False)
    needed = needed_memory(Settings(ops=list(ops)), config, weight_format)
    assert least < needed < 3 * least


def test_the_batched_caches_of_all_layers_count() -> None:
    config = QwenConfig.from_hf(published_config("qwen3-0.6b"))
    weight_format = WeightFormat.choose(4, 64, "affine", "auto", prefers_16_bits=False)
    tokens, batch = 2048, 32
    settings = Settings(ops=["mlx"], context=tokens, batch=batch, prompt_tokens=16)
    caches = 2 * 28 * 8 * 128 * tokens * batch * 2  # keys and values of all layers, two bytes
    assert needed_memory(settings, config, weight_format) > caches


@pytest.mark.skipif("cpu" not in PRESENT, reason="needs the native kernels")
def test_codes_that_a_backend_widens_count() -> None:
    config = QwenConfig.from_hf(published_config("qwen3-4b"))

    def needed(bits: int, ops: str) -> int:
        weight_format = WeightFormat.choose(bits, 64, "affine", "bfloat16", prefers_16_bits=True)
        return needed_memory(Settings(ops=[ops]), config, weight_format)

    assert needed(6, "cpu") == pytest.approx(needed(8, "cpu"), rel=1e-3)
    assert needed(6, "mlx") < 0.8 * needed(6, "cpu")


def test_copies_of_the_weights_count() -> None:
    config = QwenConfig.from_hf(published_config("qwen3-4b"))
    weight_format = WeightFormat.choose(4, 64, "affine", "auto", prefers_16_bits=False)

    def copies(*ops: str, peers: tuple[str, ...] = ()) -> int:
        settings = Settings(ops=list(ops), peers=bool(peers), peer=list(peers))
        needed = needed_memory(settings, config, weight_format)
        return round(needed / (1.1 * 4_022_468_096 * 5 / 8))

    assert copies("mlx") == 1
    assert copies("mlx", peers=("mlx-lm",)) == 2
    assert copies("mlx", peers=("mlx-lm", "openvino")) == 3
    if "cpu-int8" in PRESENT:
        assert copies("cpu", "cpu-int8") == 1  # of one layout
        assert copies("mlx", "cpu") == 2
