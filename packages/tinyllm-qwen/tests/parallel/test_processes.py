"""Real processes on loopback that share a model give the tokens of one process."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_ops import MLX
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.stored_tensor import find_tensors
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.testing.hybrid import SHAPES, hybrid_checkpoint

pytestmark = pytest.mark.exhaustive

PROGRAM = Path(__file__).parent / "ranks_program.py"
MEMBER = Path(__file__).parent / "member_program.py"
FAMILIES = sorted((Path(__file__).parents[1] / "goldens" / "models").iterdir())
PROMPT = [5, 80, 33, 33, 12, 150, 7]
STEPS = 4
FORMATS = [
    ("qwen2", "affine", 4, 32),
    ("qwen3", "affine", 8, 64),
    ("qwen3_moe", "affine", 4, 32),
    ("qwen3", "mxfp4", 4, 32),
    ("qwen3", "mxfp8", 8, 32),
    ("qwen3", "nvfp4", 4, 16),
    ("qwen3", "affine", 2, 32),
    ("qwen2", "affine", 3, 64),
    ("qwen3_moe", "affine", 5, 32),
    ("qwen3", "affine", 6, 32),
]
DEEP: list[tuple[str, str, dict[str, object]]] = [
    (
        "qwen2-sliding",
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    ),
    ("qwen3", "qwen3", {}),
    ("qwen3-moe-mixed", "qwen3_moe", {"mlp_only_layers": [2]}),
    ("qwen3-4bit", "qwen3", {"quantization": {"group_size": 32, "bits": 4, "mode": "affine"}}),
]
MakeCheckpoint = Callable[..., Any]


def hostfile(folder: Path, size: int) -> Path:
    """Write addresses on loopback with free ports, in the format of MLX's ring."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(size)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
    path = folder / f"hosts-{size}.json"
    path.write_text(json.dumps(addresses))
    return path


def launched(
    folder: Path, size: int, checkpoints: Sequence[Path], split: str = "heads"
) -> list[list[dict[str, Any]]]:
    """Run ranks_program.py on all ranks; return the printed results, by rank and checkpoint."""
    ends = ended(folder, size, PROGRAM, split, *map(str, checkpoints))
    for code, _, errors in ends:
        assert code == 0, errors
    return [[json.loads(line) for line in out.splitlines()] for _, out, _ in ends]


def ended(folder: Path, size: int, program: Path, *arguments: str) -> list[tuple[int, str, str]]:
    """Run a program on all ranks; return the exit code, stdout and stderr of each."""
    hosts = str(hostfile(folder, size))
    command = [sys.executable, str(program), *arguments]
    with ExitStack() as stack:
        ranks = []
        for rank in range(size):
            environment = os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": hosts}
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        ends = [process.communicate(timeout=300) for process in ranks]
        return [(rank.returncode, *end) for rank, end in zip(ranks, ends, strict=True)]


def alone(folder: Path) -> list[int]:
    """Return the tokens of a single process with the whole model."""
    config = QwenConfig.from_folder(folder)
    model = Qwen(config, load_weights(folder, config, dtype=mx.float32), ops=MLX)
    cache, tokens, found = model.make_caches(), mx.array([PROMPT]), []
    for _ in range(STEPS):
        token = mx.argmax(model(tokens, cache, last=1), axis=-1)
        tokens = token.reshape(1, 1)
        found.append(int(token))
    return found


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, checkpoint_in: MakeCheckpoint) -> list[Path]:
    """Paths of checkpoints, one per format, whose matrices can be divided among four ranks."""
    mx.random.seed(3)
    folders = []
    for family, mode, bits, group in FORMATS:
        folder = tmp_path_factory.mktemp("packed") / f"{family}-{mode}-{bits}"
        settings = {"group_size": group, "bits": bits, "mode": mode}
        made = checkpoint_in(
            folder,
            family,
            vocab_size=157,
            num_hidden_layers=1,
            intermediate_size=256,
            hidden_size=64,
            head_dim=64,
            quantization=settings,
        ).fill(mx.float32)
        made.tensors = {name: tensor * 0.2 for name, tensor in made.tensors.items()}
        paths = [name.removesuffix(".weight") for name, w in made.tensors.items() if w.ndim > 1]
        made.quantize(paths, group, bits, mode).save()
        folders.append(folder)
    return folders


@pytest.fixture(scope="module")
def expected(packed: list[Path]) -> dict[Path, list[int]]:
    """The tokens of a single process for each checkpoint path."""
    return {folder: alone(folder) for folder in [*FAMILIES, *packed]}


def check_tokens(ranks: list[list[dict[str, Any]]], expected: list[list[int]]) -> None:
    """Check the tokens of all ranks, and the first three of rank 0's driven passes."""
    for printed in ranks:
        assert [line["tokens"] for line in printed] == expected
    for name in ("in chunks", "trimmed", "paged"):
        driven = [line[name] for line in ranks[0]]
        assert driven == [tokens[:3] for tokens in expected], name


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_give_the_tokens_of_one_process(
    size: int, tmp_path: Path, expected: dict[Path, list[int]]
) -> None:
    # On two cores this test takes a third of the time of the package's tests. So only two ranks run
    # all checkpoints. Three and four ranks run every second one, and together run all.
    # Models with recurrent layers have two key heads, and more ranks need more.
    checkpoints = list(expected)
    if size > 2:
        recurrent = ("qwen3.5", "qwen3-next")
        others = [each for each in checkpoints if not each.name.startswith(recurrent)]
        checkpoints = others[size % 2 :: 2]
    ranks = launched(tmp_path, size, checkpoints)
    check_tokens(ranks, [expected[folder] for folder in checkpoints])
    for at, folder in enumerate(checkpoints):
        header = 8 + int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
        # Without the vision tower.
        stored = find_tensors(folder, QwenConfig.from_folder(folder))
        whole = sum(tensor.nbytes for tensor in stored.values())
        total = [printed[at]["total"] for printed in ranks]
        # Every rank has the norms and routers, and several ranks may have the same heads.
        assert whole <= sum(total) < 1.6 * whole
        assert max(total) < 0.7 * whole
        if Path("/proc/self/io").exists():  # only Linux counts the bytes that a process has read
            for printed in ranks:  # the header is read too, twice, through a buffer of 8 KiB
                more = printed[at]["read"] - printed[at]["total"]
                assert 0 <= more < 2 * (header + 8192) + 1024


@pytest.fixture(scope="module")
def deep(
    tmp_path_factory: pytest.TempPathFactory, checkpoint_in: MakeCheckpoint
) -> dict[Path, list[int]]:
    """Tokens of a single process for checkpoints of four layers: each family, and one in 4 bits."""
    mx.random.seed(5)
    found = {}
    for name, family, fields in DEEP:
        folder = tmp_path_factory.mktemp("deep") / name
        made = checkpoint_in(folder, family, vocab_size=157, num_hidden_layers=4, **fields)
        made = made.fill(mx.float32)
        made.tensors = {name: tensor * 0.2 for name, tensor in made.tensors.items()}
        if "quantization" in fields:
            paths = [name.removesuffix(".weight") for name, w in made.tensors.items() if w.ndim > 1]
            made.quantize(paths, 32, 4, "affine")
        made.save()
        found[folder] = alone(folder)
    return found


@pytest.mark.parametrize(("size", "split"), [(2, "3,1"), (3, "layers"), (4, "layers")])
def test_stages_give_the_tokens_of_one_process(
    size: int, split: str, tmp_path: Path, deep: dict[Path, list[int]]
) -> None:
    ranks = launched(tmp_path, size, list(deep), split)
    check_tokens(ranks, list(deep.values()))
    layers = 3 if split == "3,1" else -(-4 // size)
    for at, folder in enumerate(deep):
        file = folder / "model.safetensors"
        whole = file.stat().st_size - 8 - int.from_bytes(file.read_bytes()[:8], "little")
        total = [printed[at]["total"] for printed in ranks]
        # Every rank has the last norm, and a small part of the vocabulary.
        assert whole <= sum(total) < 1.02 * whole
        assert max(total) < (layers / 4 + 0.1) * whole


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[int]]:
    """Tokens of a single process for checkpoints with recurrent layers.

    They have four key heads with two value heads each. The files are those of Hugging Face, of
    Qwen3.5 and of Qwen3-Next, and of MLX, dense and in 4 bits.
    """
    heads = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
    dense, moe, following = (
        dict(SHAPES[name]) | heads for name in ("tiny", "tiny-moe", "tiny-next")
    )
    moe["shared_expert_intermediate_size"] = 128  # four groups of 32
    folder, packed = tmp_path_factory.mktemp("hybrid"), PackedFormat(group_size=32, bits=4)
    made = [
        hybrid_checkpoint(folder / "hf", dense),
        hybrid_checkpoint(folder / "hf-next", following),
        hybrid_checkpoint(folder / "mlx", dense, files="mlx"),
        hybrid_checkpoint(folder / "mlx-moe-4bit", moe, files="mlx", packed=packed),
    ]
    return {checkpoint: alone(checkpoint) for checkpoint in made}


@pytest.mark.parametrize(
    ("size", "split"), [(2, "heads"), (4, "heads"), (3, "heads"), (2, "3,5"), (3, "layers")]
)
def test_ranks_share_recurrent_layers(
    size: int, split: str, tmp_path: Path, hybrid: dict[Path, list[int]]
) -> None:
    ranks = launched(tmp_path, size, list(hybrid), split)
    check_tokens(ranks, list(hybrid.values()))


def test_ranks_with_one_other_byte_do_not_start(tmp_path: Path) -> None:
    first, second = (Path(shutil.copytree(resolve("pico"), tmp_path / name)) for name in "ab")
    ends = ended(tmp_path, 2, MEMBER, str(first), str(second))
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert int(ends[0][1]) >= 0
    weights = second / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    for code, _, errors in ended(tmp_path, 2, MEMBER, str(first), str(second)):
        assert code == 1
        assert "ValueError: model.safetensors: ranks 0 and 1 have different bytes" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_rank_that_waits_for_the_others(
    number: signal.Signals, tmp_path: Path
) -> None:
    program = (
        "import os, runpy, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )
    path = hostfile(tmp_path, 2)
    host, _, port = json.loads(path.read_text())[0][0].rpartition(":")
    environment = os.environ | {"MLX_RANK": "1", "MLX_HOSTFILE": str(path)}
    with (
        socket.create_server((host, int(port))) as rank_0,
        subprocess.Popen([sys.executable, "-c", program, str(MEMBER)], env=environment) as rank_1,
    ):
        rank_0.settimeout(60)
        rank_0.accept()[0].close()  # rank 1 connects to its neighbor, and waits for a connection
        rank_1.send_signal(number)
        started = time.monotonic()
        assert rank_1.wait(60) == -number
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("has_executable", [True, False])
def test_a_rank_that_waits_too_long_gives_the_reason(tmp_path: Path, has_executable: bool) -> None:
    program = (
        "import sys\n"
        "from tinyllm_qwen.parallel import member\n"
        f"sys.executable = {has_executable} and sys.executable\n"  # a program may embed Python
        "member.JOIN_TIMEOUT = 1\n"
        "member.Member.join(lambda _rank, _why: None)\n"
    )
    path = hostfile(tmp_path, 2)
    host, _, port = json.loads(path.read_text())[0][0].rpartition(":")
    environment = os.environ | {"MLX_RANK": "1", "MLX_HOSTFILE": str(path)}
    with socket.create_server((host, int(port))):  # connections are made, but nothing answers
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    reason = "rank 1: the other ranks did not join within 1 s: are all started, with the same "
    assert ended.stderr.endswith(f"{reason}MLX_HOSTFILE?\n") == has_executable
    assert "Traceback" not in ended.stderr
