"""Rank 0 listens where the others find it, or says what to do."""

import json
import queue
import socket
import threading

import mlx.core as mx
import pytest
from tinyllm_layers import Ranks
from tinyllm_qwen.parallel.rendezvous import agree, meet

ELSEWHERE = "192.0.2.7"  # an address for documents, which no machine has


class Speakers:
    """Ranks in threads of one process: what each says all hear."""

    def __init__(self, size: int) -> None:
        self.said: list[list[int]] = [[]] * size
        self.barrier = threading.Barrier(size, timeout=10)

    def heard(self, rank: int, part: mx.array) -> list[list[int]]:
        self.said[rank] = part.tolist()
        self.barrier.wait()
        heard = list(self.said)
        self.barrier.wait()
        return heard


class Speaker(Ranks):
    """One of them."""

    def __init__(self, speakers: Speakers, rank: int) -> None:
        self.speakers, self.rank, self.size = speakers, rank, len(speakers.said)

    def sum(self, part: mx.array) -> mx.array:
        heard = self.speakers.heard(self.rank, part)
        return mx.array([sum(numbers) for numbers in zip(*heard, strict=True)])

    def stack(self, part: mx.array) -> mx.array:
        return mx.array(self.speakers.heard(self.rank, part))


class Told(Speaker):
    """Rank 1 of two, to whom rank 0 has said where it listens."""

    def __init__(self, port: int) -> None:
        super().__init__(Speakers(2), 1)
        self.address = json.dumps(["127.0.0.1", port, "password"]).encode()

    def sum(self, part: mx.array) -> mx.array:
        return mx.array([*self.address, *[0] * (part.size - len(self.address))])


def alone(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Speaker:
    """Rank 0 of two, started so."""
    for name in ("TINYLLM_LEADER", "MLX_HOSTFILE", "MLX_JACCL_COORDINATOR", "NCCL_HOST_IP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Speaker(Speakers(2), 0)


def lost(rank: int, why: str) -> None:
    raise AssertionError(f"rank {rank} {why}")


def test_all_ranks_get_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYLLM_LEADER", "127.0.0.1")
    speakers = Speakers(3)
    found: queue.SimpleQueue[tuple[int, list[object]]] = queue.SimpleQueue()

    def join(rank: int) -> None:
        lines = meet(Speaker(speakers, rank), lost)
        if rank == 0:
            for line in lines:
                line.send(f"to {line.rank}\n".encode())
                line.close()
            found.put((0, [line.rank for line in lines]))
        else:
            found.put((rank, list(lines[0].received())))
            lines[0].close()

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


@pytest.mark.parametrize(
    "environment",
    [
        {"MLX_JACCL_COORDINATOR": f"{ELSEWHERE}:32323"},
        {"NCCL_HOST_IP": ELSEWHERE},
        {"NCCL_HOST_IP": "127.0.0.1", "TINYLLM_LEADER": ELSEWHERE},
    ],
)
def test_rank_0_listens_where_its_launcher_says(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = rf"the other ranks do not reach rank 0 at {ELSEWHERE} \(.*: start rank 0 with TINYLLM_"
    with pytest.raises(OSError, match=said):
        meet(alone(environment, monkeypatch), lost)


def test_a_rank_0_that_is_not_to_be_reached_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = rf"rank 0 is not to be reached at 127.0.0.1:{port} \(.*: start rank 0 with TINYLLM_LEAD"
    with pytest.raises(OSError, match=said):
        meet(Told(port), lost)


def test_ranks_that_say_different_things_do_not_go_on() -> None:
    speakers, ends = Speakers(2), queue.SimpleQueue[str]()

    def say(rank: int) -> None:
        try:
            agree(Speaker(speakers, rank), f"fact {rank}")
        except ValueError as error:
            ends.put(str(error))

    threads = [threading.Thread(target=say, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for _ in threads:
        assert ends.get(timeout=1).startswith("rank 0 has fact 0, rank 1 fact 1: start all ranks")
