"""Rank 0 listens at an address that all ranks know, or the error has a remedy."""

import json
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_layers import Communicator
from tinyllm_qwen.parallel import rendezvous, weight_files
from tinyllm_qwen.parallel.rendezvous import agree, connect
from tinyllm_qwen.parallel.weight_files import WeightComparison, comparison

ELSEWHERE = "192.0.2.7"  # reserved for documentation (RFC 5737): no machine has it


class Speakers:
    """Exchange of lists between ranks that are threads of one process."""

    def __init__(self, size: int) -> None:
        self.said: list[list[int]] = [[]] * size
        self.barrier = threading.Barrier(size, timeout=10)

    def heard(self, rank: int, part: mx.array) -> list[list[int]]:
        self.said[rank] = part.tolist()  # type: ignore[assignment]
        self.barrier.wait()
        heard = list(self.said)
        self.barrier.wait()
        return heard


class Speaker(Communicator):
    """The communicator of one of the `Speakers`."""

    def __init__(self, speakers: Speakers, rank: int) -> None:
        self.speakers, self.rank, self.size = speakers, rank, len(speakers.said)

    def all_reduce(self, part: mx.array) -> mx.array:
        heard = self.speakers.heard(self.rank, part)
        return mx.array([sum(numbers) for numbers in zip(*heard, strict=True)])

    def all_gather(self, part: mx.array) -> mx.array:
        return mx.array(self.speakers.heard(self.rank, part))


class Told(Speaker):
    """Rank 1 of two. Its all_reduce returns rank 0's address, as if rank 0 had sent it."""

    def __init__(self, port: int) -> None:
        super().__init__(Speakers(2), 1)
        self.address = json.dumps(["127.0.0.1", port, "password"]).encode()

    def all_reduce(self, part: mx.array) -> mx.array:
        return mx.array([*self.address, *[0] * (part.size - len(self.address))])


def together(size: int, program: Callable[[Communicator], None]) -> list[str]:
    """Run a program on all ranks; return the error messages in the order of the ranks."""
    speakers = Speakers(size)
    errors: dict[int, str] = {}

    def run(rank: int) -> None:
        try:
            program(Speaker(speakers, rank))
        except ValueError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return [errors[rank] for rank in sorted(errors)]


def alone(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Speaker:
    """Set the environment variables, and return rank 0 of two."""
    for name in ("TINYLLM_DRIVER_ADDRESS", "MLX_HOSTFILE", "MLX_JACCL_COORDINATOR", "NCCL_HOST_IP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Speaker(Speakers(2), 0)


def lost(rank: int, why: str) -> None:
    raise AssertionError(f"rank {rank} {why}")


def test_all_ranks_get_a_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYLLM_DRIVER_ADDRESS", "127.0.0.1")
    speakers = Speakers(3)
    found: queue.SimpleQueue[tuple[int, list[object]]] = queue.SimpleQueue()

    def join(rank: int) -> None:
        channels = connect(Speaker(speakers, rank), lost)
        if rank == 0:
            for channel in channels:
                channel.send(f"to {channel.rank}\n".encode())
                channel.close()
            found.put((0, [channel.rank for channel in channels]))
        else:
            found.put((rank, list(channels[0].received())))
            channels[0].close()

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert dict(found.get(timeout=1) for _ in range(3)) == {
        0: [1, 2],
        1: [b"to 1\n"],
        2: [b"to 2\n"],
    }


@pytest.mark.parametrize("line", [b"", b"[1", b"[1, 2, 3]", b"1", '[1, "é"]'.encode(), b"\xff"])
def test_a_stranger_is_no_rank(line: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(line + b"\n")
        assert rendezvous._rank_of(ours, "password") is None


def test_a_stranger_that_sends_byte_after_byte_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous, "_HELLO_TIMEOUT", 0.3)
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.05):
            theirs.sendall(b" ")

    thread = threading.Thread(target=drip)
    with ours, theirs:
        thread.start()
        started = time.monotonic()
        assert rendezvous._rank_of(ours, "password") is None
        assert time.monotonic() - started < 5
        over.set()
        thread.join()


def test_rank_0_of_another_version_sends_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_broadcast", lambda *_: "1 2")
    with pytest.raises(RuntimeError, match="start all ranks with the same version"):
        connect(Speaker(Speakers(2), 1), lost)


@pytest.mark.parametrize(
    "environment",
    [
        {"MLX_JACCL_COORDINATOR": f"{ELSEWHERE}:32323"},
        {"NCCL_HOST_IP": ELSEWHERE},
        {"NCCL_HOST_IP": "127.0.0.1", "TINYLLM_DRIVER_ADDRESS": ELSEWHERE},
    ],
)
def test_rank_0_listens_where_its_launcher_says(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = rf"not all ranks connected to rank 0 at {ELSEWHERE} \(.*: start rank 0 with TINYLLM_"
    with pytest.raises(OSError, match=said):
        connect(alone(environment, monkeypatch), lost)


def test_an_unreachable_rank_0_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = rf"rank 0 cannot be reached at 127.0.0.1:{port} \(.*: start rank 0 with TINYLLM_DRIV"
    with pytest.raises(OSError, match=said):
        connect(Told(port), lost)


def test_ranks_that_disagree_stop() -> None:
    errors = together(2, lambda ranks: agree(ranks, f"fact {ranks.rank}"))
    assert len(errors) == 2
    for error in errors:
        assert error.startswith(
            "rank 1: expected fact 0, as on rank 0, got fact 1: start all ranks"
        )


def copies(folder: Path, count: int, shards: int = 1) -> list[Path]:
    """Create `count` folders with identical weight files of 100,000 random bytes."""
    rng = random.Random(3)
    names = ["model.safetensors"]
    if shards > 1:
        names = [f"model-{at}.safetensors" for at in range(shards)]
    data = [rng.randbytes(100_000) for _ in names]
    folders = [folder / str(at) for at in range(count)]
    for each in folders:
        each.mkdir()
        for name, content in zip(names, data, strict=True):
            (each / name).write_bytes(content)
        if shards > 1:
            index = {"weight_map": {name: name for name in names}}
            (each / "model.safetensors.index.json").write_text(json.dumps(index))
    return folders


def flip(path: Path, at: int) -> None:
    """Change one bit of one byte, and neither the size nor the time of the file."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_files, "_CHUNK_BYTES", 4096)


def compared(folders: Sequence[Path]) -> tuple[list[str], list[int]]:
    """Compare folders, one per rank; return the errors, and the bytes that each rank read."""
    read = [0] * len(folders)

    def load(ranks: Communicator) -> None:
        with comparison(ranks, folders[ranks.rank]) as weights:
            try:
                weights.finish(lambda _done, _total: None)
            finally:
                read[ranks.rank] = weights.bytes_read

    return together(len(folders), load), read


@pytest.mark.parametrize("shards", [1, 3])
def test_one_byte_that_differs_is_refused_by_name(shards: int, tmp_path: Path) -> None:
    folders = copies(tmp_path, 2, shards)
    assert compared(folders) == ([], [100_000 * shards] * 2)
    name = "model.safetensors" if shards == 1 else "model-1.safetensors"
    flip(folders[1] / name, 50_000)
    errors, _ = compared(folders)
    assert len(errors) == 2
    for error in errors:
        assert error.startswith(f"{name}: ranks 0 and 1 have different bytes in this file (blake2b")


def test_ranks_that_read_the_same_files_leave_the_bytes_to_one(tmp_path: Path) -> None:
    first, second = copies(tmp_path, 2)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "model.safetensors").symlink_to(first / "model.safetensors")
    assert compared([first, first, linked]) == ([], [0, 0, 0])
    assert compared([first, second, linked, second]) == ([], [100_000, 100_000, 0, 0])
    flip(second / "model.safetensors", 99_999)
    errors, _ = compared([first, linked, second, second])
    assert len(errors) == 4
    for error in errors:
        assert error.startswith("model.safetensors: ranks 0 and 2 have different bytes")


def test_other_files_of_the_same_name_on_another_machine_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = copies(tmp_path, 1)
    machines = iter(["one", "another"])
    monkeypatch.setattr(weight_files, "machine_name", lambda: next(machines))
    assert compared([folder, folder]) == ([], [100_000, 100_000])


def test_other_names_of_files_are_refused(tmp_path: Path) -> None:
    first, second = copies(tmp_path, 2, 2)
    index = second / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-1", "model-2"))
    (second / "model-1.safetensors").rename(second / "model-2.safetensors")
    errors, _ = compared([first, second])
    assert len(errors) == 2
    for error in errors:
        assert error.startswith("rank 1: expected 2 weight files (model-0.safetensors, names")


def test_the_reading_ends_with_a_load_that_fails(tmp_path: Path) -> None:
    folders = copies(tmp_path, 2)
    ends: list[WeightComparison] = []

    def load(ranks: Communicator) -> None:
        with comparison(ranks, folders[ranks.rank]) as weights:
            ends.append(weights)
            raise ValueError("no")

    assert together(2, load) == ["no", "no"]
    for weights in ends:
        assert weights.cancelled.is_set()
        assert weights.digests is not None
        assert weights.digests.done()
