"""A control channel detects a lost process, and ranks wait for each other."""

import queue
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_layers import Communicator
from tinyllm_qwen import Qwen, load
from tinyllm_qwen.parallel import control_channel as channel_module
from tinyllm_qwen.parallel import member as member_module
from tinyllm_qwen.parallel.control_channel import ControlChannel
from tinyllm_qwen.parallel.member import Member, has_peers, is_launched, launched_split

Reports = queue.SimpleQueue[tuple[int, str]]
Ends = tuple[ControlChannel, socket.socket, Reports]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """Rank 1's channel to rank 0, the socket at rank 0's end, and the queue of reported losses."""
    monkeypatch.setattr(channel_module, "HEARTBEAT_TIMEOUT", 0.4)
    monkeypatch.setattr(channel_module, "HEARTBEAT_INTERVAL", 0.05)
    reports: Reports = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    channel = ControlChannel(ours, 0, lambda rank, why: reports.put((rank, why)))
    with ours, theirs:
        yield channel, theirs, reports
        channel.close()


def test_lines_are_received_and_heartbeats_are_not(ends: Ends) -> None:
    channel, theirs, reports = ends
    assert not channel.ended
    theirs.sendall(b"one\n\ntwo\nend\n")
    assert list(channel.received()) == [b"one\n", b"two\n"]
    assert channel.ended
    assert theirs.recv(10).startswith(b"\n")
    channel.close()
    with pytest.raises(queue.Empty):
        reports.get(timeout=0.6)


@pytest.fixture(scope="module")
def pico() -> Qwen:
    """A model, loaded before a channel expects heartbeats."""
    return load("pico")[0]


def test_an_idle_worker_frees_memory_once(
    pico: Qwen, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, theirs, _ = ends
    freed: queue.SimpleQueue[str] = queue.SimpleQueue()

    def work(_model: Qwen, lines: Iterable[bytes]) -> None:
        for _ in lines:
            freed.put("work")

    monkeypatch.setattr(channel_module, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(member_module, "release_free_memory", lambda: freed.put("freed"))
    monkeypatch.setattr(member_module, "work", work)
    member = Member(mx.distributed.init(), Communicator(), [channel])
    worker = threading.Thread(target=member.work, args=(pico,))
    worker.start()
    for _ in range(2):
        assert freed.get(timeout=5) == "freed"
        for _ in range(3):
            theirs.sendall(b"\n")  # a heartbeat is no command
            with pytest.raises(queue.Empty):
                freed.get(timeout=0.1)
        theirs.sendall(b"{}\n")
        assert freed.get(timeout=5) == "work"
    theirs.sendall(b"end\n")
    worker.join(5)
    assert not worker.is_alive()


def test_a_closed_connection_is_a_loss_at_once(ends: Ends) -> None:
    _, theirs, reports = ends
    theirs.close()
    assert reports.get(timeout=0.3) == (0, "has left")


def test_silence_is_a_loss_after_a_while(ends: Ends) -> None:
    assert ends[2].get(timeout=5) == (0, "has given no sign of life for 0 s")


def test_heartbeats_are_enough(ends: Ends) -> None:
    _, theirs, reports = ends
    for _ in range(8):
        theirs.sendall(b"\n")
        with pytest.raises(queue.Empty):
            reports.get(timeout=0.1)


def test_an_end_in_the_middle_of_an_answer_is_a_loss(ends: Ends) -> None:
    _, theirs, reports = ends
    theirs.sendall(b"end\n")
    assert reports.get(timeout=5) == (0, "has ended in the middle of an answer")


@pytest.mark.parametrize(
    ("error", "rank_0_ended", "before", "message"),
    [
        (RuntimeError("lost"), False, [], "lost"),
        (
            RuntimeError("lost"),
            True,
            [],
            "rank 0 ended before the other ranks: see the output of rank 0",
        ),
        (ValueError("no"), True, ["ignores losses"], "no"),
    ],
)
def test_after_a_failed_all_reduce_the_channels_report_the_lost_rank(
    error: Exception,
    rank_0_ended: bool,
    before: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[object] = []

    class Leaving(ControlChannel):
        ended = rank_0_ended

        def __init__(self) -> None:
            pass  # no connection

        def ignore_loss(self) -> None:
            events.append("ignores losses")

        def close(self, *, announce: bool = True) -> None:
            events.append("announces its end" if announce else "closed")

    monkeypatch.setattr(member_module.time, "sleep", events.append)  # type: ignore[attr-defined]
    group = mx.distributed.init()
    with (
        pytest.raises(type(error), match=f"^{message}$"),
        Member(group, Communicator(), [Leaving()]),
    ):
        raise error
    assert events == [*before, member_module.LOSS_TIMEOUT, "closed"]


def test_a_rank_may_start_late(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, tries = mx.distributed.init(), []

    def init(*, strict: bool) -> mx.distributed.Group:
        tries.append(strict)
        if len(tries) < 3:
            raise RuntimeError("[ring] Couldn't connect (error: 111)")
        return alone

    monkeypatch.setattr(member_module.mx.distributed, "init", init)  # type: ignore[attr-defined]
    assert Member.join(lambda _rank, _why: None) is None
    assert tries == [True] * 3
    tries.clear()
    monkeypatch.setattr(member_module, "JOIN_TIMEOUT", 15)
    with pytest.raises(RuntimeError, match=r"form a group: \[ring\] Couldn't .* MLX_HOSTFILE, a"):
        Member.join(lambda _rank, _why: None)
    assert tries == [True]


def test_the_only_process_of_a_launcher_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("\n")
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    monkeypatch.setattr(member_module.mx.distributed, "init", None)  # type: ignore[attr-defined]
    assert Member.join(lambda _rank, _why: None) is None


@pytest.mark.parametrize(
    ("environment", "launched", "several"),
    [
        ({}, False, False),
        ({"MLX_RANK": "0", "MLX_HOSTFILE": "empty"}, True, False),
        ({"MLX_RANK": "0", "MLX_HOSTFILE": "absent"}, True, True),
        ({"MLX_RANK": "0", "MLX_WORLD_SIZE": "1"}, True, False),
        ({"MLX_RANK": "1", "MLX_WORLD_SIZE": "2"}, True, True),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, True, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, True, True),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "MLX_RANK": "0"}, True, True),
    ],
    ids=str,
)
def test_a_launcher_may_start_one_process(
    environment: dict[str, str],
    launched: bool,
    several: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty").write_text("\n")
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (is_launched(), has_peers()) == (launched, several)
    if several:
        assert launched_split("layers").by_layers
    else:
        with pytest.raises(ValueError, match="--split layers: expected several processes, got one"):
            launched_split("layers")


@pytest.mark.parametrize(
    ("hosts", "rank", "named"),
    [
        ("{", "0", "MLX_HOSTFILE: .* cannot be read as JSON"),
        ("[]", "0", "MLX_HOSTFILE: .*: expected addresses with ports for each rank"),
        ('[["a:1"], []]', "0", "MLX_HOSTFILE: .*: expected addresses with ports"),
        ('["a:1", "b:1"]', "0", "MLX_HOSTFILE: .*: expected addresses with ports"),
        ('[["a:1"], ["b:99999"]]', "0", "MLX_HOSTFILE: .*: expected addresses with ports"),
        ('[["a"], ["b"]]', "0", "MLX_HOSTFILE: .*: expected addresses with ports"),
        ('[["a:1"]]', "0", "MLX_HOSTFILE: .*: expected addresses of at least two ranks, got one"),
        ('[["a:1"], ["b:1"]]', "2", "MLX_RANK: expected 0 to 1, as .* says, got '2'"),
        ('[["a:1"], ["b:1"]]', "x", "MLX_RANK: expected 0 to 1, as .* says, got 'x'"),
    ],
)
def test_wrong_addresses_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, rank: str, named: str
) -> None:
    path = tmp_path / "hosts"
    path.write_text(hosts)
    monkeypatch.setenv("MLX_HOSTFILE", str(path))
    monkeypatch.setenv("MLX_RANK", rank)
    monkeypatch.setattr(member_module.mx.distributed, "init", None)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=named):
        Member.join(lambda _rank, _why: None)
