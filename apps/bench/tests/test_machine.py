"""What the system says about itself is read, and what does not fit is refused."""

from pathlib import Path

import pytest
from tinyllm_bench import ceilings
from tinyllm_bench.ceilings import measure_ceilings
from tinyllm_bench.errors import BenchError
from tinyllm_bench.machine import Machine, largest_cache, read_cpuinfo
from tinyllm_bench.memory import check_memory, read_meminfo
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config
from tinyllm_bench.subject import needed_memory
from tinyllm_bench.weight_format import WeightFormat
from tinyllm_qwen import QwenConfig


def test_the_first_core_speaks_for_all() -> None:
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


def test_this_machine_is_described() -> None:
    machine = Machine.here()
    assert machine.cores >= 1
    assert machine.memory > 1 << 28
    assert machine.cpu
    assert f"MLX {machine.mlx}" in str(machine)
    measured = measure_ceilings(machine, 1e-4)
    assert 0 < measured.read_gbps < 1e5
    assert 0 < measured.tflops < 1e4


def test_what_is_read_is_far_larger_than_a_cache_but_not_than_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ceilings, "_READ_BYTES", 1 << 30)
    monkeypatch.setattr(ceilings, "available_memory", lambda gpu: 64 << 20)
    how = measure_ceilings(Machine.here(), 1e-4).read_how
    assert how.startswith("largest of 16 MiB of int32")


def test_free_memory_is_what_linux_says() -> None:
    text = "MemTotal: 24000 kB\nMemFree: 1 kB\nMemAvailable:   12345 kB\n"
    assert read_meminfo(text) == 12345 * 1024
    assert read_meminfo("MemTotal: 24000 kB\n") is None


def test_what_does_not_fit_is_refused_with_advice() -> None:
    with pytest.raises(BenchError, match=r"x needs 9\.0 GB of memory, 8\.0 GB are free: .*--bits"):
        check_memory("x", 9_000_000_000, 8_000_000_000)
    check_memory("x", 8_000_000_000, 9_000_000_000)
    check_memory("x", 8_000_000_000, None)


@pytest.mark.parametrize(
    ("bits", "ops", "least"),
    [
        (16, (), 2 * 4_022_468_096),
        (4, ("mlx",), 4_022_468_096 * 5 // 8),
        (4, (), 4_022_468_096 * 5 // 8 + 4 * 151936 * 2560),  # the head, dequantized
    ],
)
def test_a_model_needs_its_weights_and_room_to_compute(
    bits: int, ops: tuple[str, ...], least: int
) -> None:
    config = QwenConfig.from_hf(published_config("qwen3-4b"))
    form = WeightFormat.choose(bits, 64, "affine", "auto", gpu=False)
    needed = needed_memory(Settings(ops=ops), config, form)
    assert least < needed < 3 * least
