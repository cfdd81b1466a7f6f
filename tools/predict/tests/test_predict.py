"""Predictions: counted bytes compared with those of real processes, and the command."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest
from predict.__main__ import app
from predict.link import LINKS, Link
from predict.messages import (
    HEADERS,
    all_gather_sizes,
    all_reduce_sizes,
    mesh_messages,
    ring_messages,
)
from predict.model_spec import ModelSpec, local_config
from predict.prediction import Assumptions, break_even, fastest, predict
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.weights import load_part
from tinyllm_qwen.partition.partition import Partition
from tinyllm_qwen.testing.hybrid import SHAPES, hybrid_config

Run = Callable[[str], tuple[int, str, str]]
PROGRAM = Path(__file__).parent / "ring_program.py"
LENGTHS = (1, 2, 3, 5, 256, 1000, 1024)
TOKENS = 3
# Only Linux reports the bytes that a connection has sent.
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs TCP_INFO of Linux")


@pytest.fixture
def run(run_tool: Callable[..., tuple[int, str, str]], small_ceilings: None) -> Run:
    """Return a function that runs the command and returns its exit code, stdout and stderr."""
    return partial(run_tool, app, "predict")


@pytest.fixture(scope="module")
def pico() -> ModelSpec:
    return ModelSpec.of_checkpoint("pico", "float32")


def printed_by(size: int, folder: Path) -> list[list[list[object]]]:
    """Return the printed lines of each rank of a ring on loopback."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(size)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
    hosts = folder / "ring.json"
    hosts.write_text(json.dumps(addresses))
    with ExitStack() as stack:
        ranks = []
        for rank in range(size):
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(resolve("pico")), *map(str, (TOKENS, *LENGTHS))],
                env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        printed = [process.communicate(timeout=120)[0] for process in ranks]
    return [[json.loads(line) for line in each.splitlines()] for each in printed]


@linux
@pytest.mark.parametrize("size", [2, 3])
def test_the_ring_sends_what_was_predicted(size: int, tmp_path: Path, pico: ModelSpec) -> None:
    for rank, (operations, tokens) in enumerate(printed_by(size, tmp_path)):
        assert operations == [
            [
                sum(all_reduce_sizes(numbers, 4, size, rank)),
                sum(all_gather_sizes(4 * numbers, size)),
            ]
            for numbers in LENGTHS
        ]
        messages = ring_messages(pico.config, 4, size, rank, 0)
        commands = size - 1 if rank == 0 else 0  # which use other connections
        assert tokens == [sum(messages.messages[commands:])] * TOKENS


@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2)])
def test_a_rank_reads_what_the_loader_loads(size: int, rank: int, pico: ModelSpec) -> None:
    folder = resolve("pico")
    weights, partitions = load_part(
        folder, QwenConfig.from_folder(folder), rank, size, dtype=mx.float32
    )
    loaded = sum(weight.nbytes for weight in weights.values())
    assert pico.read_bytes(rank, size, 0) == loaded
    # A key and a value of 64 float32 for each of 6 layers.
    cached = 6 * len(partitions[rank].kv_heads) * 2 * 64 * 4 * 100
    assert pico.read_bytes(rank, size, 100) == loaded + cached


def test_a_rank_is_costed_as_a_model_of_fewer_heads() -> None:
    config = QwenConfig.from_hf(hybrid_config(SHAPES["tiny-moe"]))
    assert config.experts is not None
    for rank in range(2):
        part = Partition.of(config, {}, rank, 2)
        local = local_config(part, config)
        assert local.experts is not None
        assert local.recurrent is not None
        assert (local.num_attention_heads, local.num_key_value_heads) == (2, 1)
        assert (local.recurrent.num_key_heads, local.recurrent.num_value_heads) == (1, 2)
        assert local.experts.shared_size == config.experts.shared_size // 2
        assert local.intermediate_size == len(part.mlp)
        assert local.head_dim == config.head_dim
    stages = [Partition.stage(config, rank, 2, ()) for rank in range(2)]
    assert {local_config(part, config) for part in stages} == {config}


def test_a_shape_reads_as_much_as_its_checkpoint(pico: ModelSpec) -> None:
    shape = ModelSpec.of_shape("pico", None, None, None, "float32")
    assert shape.formats == pico.formats
    assert [shape.read_bytes(1, 2, keys) for keys in (0, 9)] == [
        pico.read_bytes(1, 2, keys) for keys in (0, 9)
    ]


def test_a_sum_by_hand() -> None:
    assert all_reduce_sizes(10, 2, 3, 0) == [8, 8, 4, 8]  # segments of 4, 4 and 2 numbers
    assert all_reduce_sizes(10, 2, 3, 2) == [4, 8, 8, 4]
    assert all_reduce_sizes(4, 4, 3, 0) == [8, 8, 0, 8]  # the last segment is empty
    assert all_reduce_sizes(1, 4, 2, 1) == [4, 4]
    assert all_reduce_sizes(7, 4, 1, 0) == all_gather_sizes(12, 1) == []


def test_a_token_by_hand(pico: ModelSpec) -> None:
    # 13 all-reduces of 256 float32 in two halves, twelve bytes for the best token, and a command.
    messages = ring_messages(pico.config, 4, 2, 0, 17)
    command = (
        b'{"cache":0,"length":17,"tokens":[[2047]],"output":"best","phase":"decode","offset":17}\n'
    )
    assert messages.payload == 13 * 2 * 512 + 12 + len(command)
    assert messages.wire_bytes == messages.payload + HEADERS * ((26 + 1 + 1) + (26 + 1))
    assert messages.hops == 1 + 26 + 1
    first = len(command) + HEADERS
    assert messages.path_bytes == first + 26 * (512 + 2 * HEADERS) + 12 + 2 * HEADERS
    mesh = mesh_messages(pico.config, 4, 3, 1, 17)
    assert mesh.payload == 2 * (13 * 1024 + 12)
    assert mesh.hops == 1 + 13 + 1
    assert mesh_messages(pico.config, 4, 1, 0, 17) == ring_messages(pico.config, 4, 1, 0, 17)


def test_time_is_reading_and_waiting(pico: ModelSpec) -> None:
    given = Assumptions(1e9, 2e-3, 10)
    link = Link("slow", 1e6, 1e-3)
    (one, two), refusal = predict(pico, link, 2, given)
    assert refusal == ""
    assert one.seconds == pytest.approx(2e-3 + pico.read_bytes(0, 1, 10) / 1e9)
    messages = ring_messages(pico.config, 4, 2, 0, 10)
    assert two.waiting == pytest.approx(28 * 1e-3 + messages.path_bytes / 1e6)
    assert two.computing == pytest.approx(2e-3 + pico.read_bytes(0, 2, 10) / 1e9)
    assert two.speedup == pytest.approx(one.seconds / two.seconds)
    assert fastest([one, two]) == one


@pytest.mark.parametrize("name", ["10gbe", "thunderbolt5-rdma"])
def test_at_the_break_even_two_ranks_are_as_fast_as_one(name: str) -> None:
    spec = ModelSpec.of_shape("qwen3-0.6b", 4, 64, "affine", "bfloat16")
    given, link = Assumptions(4e10, 0.0, 512), LINKS[name]
    found, _ = predict(spec, link, 2, given)
    limit = Link("limit", link.bandwidth, break_even(found, link), mesh=link.mesh)
    (_, two), _ = predict(spec, limit, 2, given)
    assert two.speedup == pytest.approx(1)
    with pytest.raises(ValueError, match="expected some of 1 and 2 ranks"):
        break_even(found[:1], link)


def test_time_beyond_reading_is_not_divided(pico: ModelSpec) -> None:
    reading = pico.read_bytes(0, 1, 5) / 1e9
    assert Assumptions.of_one(pico, 1e9, None, 5).fixed == 0
    given = Assumptions.of_one(pico, 1e9, 0.5 / reading, 5)
    assert given.fixed == pytest.approx(reading)


def test_the_command_prints_tables(run: Run, tmp_path: Path) -> None:
    image = tmp_path / "out.png"
    code, out, err = run(f"--shape pico --ranks 5 --read 40 --plot {image}")
    assert code == 0
    for name in (*LINKS, "hops", "on the wire", "fastest with", "limit for 2 ranks", "3 ranks"):
        assert name in out
    assert "5 ranks" not in out
    assert err.startswith("predict: 5 ranks: group: 2 query heads")
    assert err.endswith(f"predict: wrote {image}\n")
    assert image.read_bytes().startswith(b"\x89PNG")


def test_json_has_what_the_tables_have(run: Run) -> None:
    options = "--model pico --ranks 2 --alone 50 --read 40 --link 1gbe --bandwidth 10 --latency 50"
    code, out, err = run(f"{options} --json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["format"] == "tinyllm-predict/1"
    assert [link["name"] for link in document["links"]] == ["1gbe", "10 MB/s, 50 us"]
    for link in document["links"]:
        one, two = link["predictions"]
        assert one["tokens_per_second"] == pytest.approx(50)
        seconds = two["computing"] + two["waiting"]
        assert two["tokens_per_second"] == pytest.approx(1 / seconds)
        waiting = two["hops"] * link["latency"] + two["path_bytes"] / link["bandwidth"]
        assert two["waiting"] == pytest.approx(waiting)
        assert link["fastest_ranks"] == (1 if one["speedup"] >= two["speedup"] else 2)


def test_the_reading_speed_is_measured_by_default(run: Run) -> None:
    code, out, _ = run("--shape pico --ranks 1 --json")
    assert code == 0
    assert json.loads(out)["assumptions"]["read_rate"] > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--shape gpt", "--shape: expected one of pico, qwen3-0.6b"),
        ("--link wifi", "--link: expected one of loopback, 1gbe"),
        ("--bandwidth 100", "--bandwidth, --latency: expected both"),
        ("--bandwidth 0 --latency 1", "--bandwidth: expected a number above 0"),
        ("--bandwidth 1 --latency -1", "--latency: expected 0 or more"),
        ("--bandwidth 1 --latency nan", "--latency: expected 0 or more"),
        ("--read 0", "--read: expected a number above 0, got 0.0"),
        ("--read 1 --alone nan", "--alone: expected a number above 0"),
        ("--read 1 --alone 1000", "--alone: expected at most 2.5"),
        ("--dtype auto", "--dtype: expected one of float32, float16, bfloat16, got auto"),
        ("--bits 7", "--bits"),
        ("--model pico --bits 4", "--bits: is for a shape"),
        ("--model pico --shape pico", "--shape: is for a shape"),
        ("--plot out.txt", "--plot: expected one of .png, .svg, .pdf, got .txt"),
        ("--ranks 0", "--ranks"),
        ("--shape pico --context 2049", "--context: expected at most 2048, the context of pico"),
        ("--nonsense", "No such option: --nonsense"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, options: str, says: str) -> None:
    code, out, err = run(options)
    assert (code, out) == (2, "")
    assert err.startswith("predict: ")
    assert err.count("\n") == 1
    assert says in err
