"""A leader's orders put followers in its place, and a line notices when the other end is gone."""

import queue
import socket
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_layers import PagedCache, Ranks, TransformerBlock
from tinyllm_ops import MLX, PagedTokens
from tinyllm_qwen.checkpoint.weights import load_part
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel import line as line_module
from tinyllm_qwen.parallel import member as member_module
from tinyllm_qwen.parallel.follower import Follower
from tinyllm_qwen.parallel.leader import Leader
from tinyllm_qwen.parallel.line import Line
from tinyllm_qwen.parallel.member import Member
from tinyllm_qwen.parallel.orders import (
    CopyPages,
    CountPages,
    FindBest,
    MakeCache,
    MakePages,
    Order,
    PagedPass,
    Pass,
    Score,
    decoded,
    encoded,
)
from tinyllm_qwen.parallel.share import Share

GOLDEN = Path(__file__).parent / "goldens" / "models" / "qwen3"


def part() -> Qwen:
    """The one part of a model that a process shares with nobody."""
    config = QwenConfig.from_folder(GOLDEN)
    weights, partition = load_part(GOLDEN, config, 0, 1)
    share = Share(Ranks(mx.distributed.init()), partition)
    return Qwen(config, weights, ops=MLX, share=share)


class Recorder(Line):
    """A line that leads nowhere."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, line: bytes) -> None:
        self.sent += line.splitlines(keepends=True)


class Watched(Qwen):
    """A follower's part, and how its caches stood after each pass."""

    def __init__(self, model: Qwen) -> None:
        vars(self).update(vars(model))
        self.seen: list[tuple[int, list[list[int]]]] = []

    def hidden(self, tokens: mx.array, cache: object, *, rows: object = None) -> mx.array:
        h = super().hidden(tokens, cache, rows=rows)
        self.seen.append((cache[0].offset, tokens.tolist()))
        return h


def test_followers_go_where_the_leader_goes() -> None:
    record = Recorder()
    leader, follower = Leader(part(), [record]), Watched(part())
    first, second = leader.make_cache(), leader.make_cache(max_size=16)
    h = leader.hidden(mx.array([[1, 2, 3]]), first)
    leader.head(h[:, -1:])
    for cache in first:
        cache.trim(1)
    leader.best(leader.hidden(mx.array([[4]]), first), 2)
    leader.head(leader.hidden(mx.array([[5, 6], [7, 8]]), second))
    Follower(follower).follow(record.sent)
    assert follower.seen == [(3, [[1, 2, 3]]), (2, [[4]]), (2, [[5, 6], [7, 8]])]


class Paged(Qwen):
    """A follower's part, with the pages that it made and the scores that it helped to find."""

    def __init__(self, model: Qwen) -> None:
        vars(self).update(vars(model))
        self.pages: list[list[PagedCache]] = []
        self.scores: list[mx.array] = []

    def make_pages(
        self, count: int, page_size: int, *, kv_bits: int | None = None
    ) -> list[PagedCache]:
        self.pages.append(super().make_pages(count, page_size, kv_bits=kv_bits))
        return self.pages[-1]

    def head(self, h: mx.array) -> mx.array:
        self.scores.append(super().head(h))
        return self.scores[-1]


def stand(pages: list[PagedCache], *numbers: list[int] | list[list[int]]) -> None:
    """Tell all layers' pages where the tokens of a pass stand."""
    for layer in pages:
        layer.tokens = PagedTokens(*(mx.array(each, dtype=mx.int32) for each in numbers))


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_followers_keep_the_pages_that_the_leader_keeps(kv_bits: int | None) -> None:
    record = Recorder()
    leader, follower = Leader(part(), [record]), Paged(part())
    leader.make_pages(1, 4)  # and nobody keeps them
    pages = leader.make_pages(6, 4, kv_bits=kv_bits)
    # Two prompts side by side, of five tokens in two pages and of two in one.
    stand(
        pages, [[4, 1], [2, 0]], [0, 5, 7], [5, 2], [0, 1, 2, 3, 4, 0, 1], [*range(16, 20), 4, 8, 9]
    )
    leader.hidden(mx.array([[1, 2, 3, 4, 5, 6, 7]]), pages)
    leader.copy_pages(pages, [(1, 3), (2, 5)])
    # The first goes on in its copy; of the other two rows the head sees the last alone.
    stand(pages, [[4, 3], [5, 0], [5, 0]], [0, 1, 2, 3], [6, 3, 4], [5, 2, 3], [13, 22, 23])
    h = leader.hidden(mx.array([[8], [9], [10]]), pages, rows=[0, 2])
    scores = leader.head(h)
    assert len(scores) == 2
    Follower(follower).follow(record.sent)
    for ours, theirs in zip(pages, follower.pages[1], strict=True):
        for one, other in zip(ours.arrays, theirs.arrays, strict=True):
            assert mx.array_equal(one, other)
    assert mx.array_equal(scores, follower.scores[0])


class Roomier(Ranks):
    """One of two processes, of which the other has room for five pages."""

    def stack(self, part: mx.array) -> mx.array:
        return mx.array([part.item(), 5])


def test_there_are_as_many_pages_as_every_rank_has_room_for() -> None:
    record = Recorder()
    leader = Leader(part(), [record])
    page = sum(layer.nbytes for layer in leader.make_pages(1, 4, kv_bits=8))
    assert leader.pages_within(4 * page - 1, 4, kv_bits=8) == 3
    leader.make_cache()  # the others have answered, and wait for nothing
    assert CountPages(4 * page - 1, 4, 8) in map(decoded, record.sent)
    Follower(part()).follow(record.sent)
    whole = part()
    whole.share = Share(Roomier(mx.distributed.init()), whole.share.partition)
    assert [whole.pages_within(count * page, 4, kv_bits=8) for count in (3, 9)] == [3, 5]


def test_caches_that_are_gone_are_forgotten_everywhere() -> None:
    record = Recorder()
    leader = Leader(part(), [record])
    for _ in range(2):
        cache = leader.make_cache()
        leader.hidden(mx.array([[1]]), cache)
        del cache
    leader.make_cache()
    assert [decoded(line).__class__.__name__ for line in record.sent].count("DropCache") == 2
    Follower(part()).follow(record.sent)


def test_a_pass_that_was_left_in_the_middle_ends_the_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(part(), [Recorder()])
    cache = leader.make_cache()

    def interrupted(*_: object) -> mx.array:
        raise KeyboardInterrupt

    monkeypatch.setattr(TransformerBlock, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        leader.hidden(mx.array([[1]]), cache)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"out of step: .* Start the program again"):
        leader.hidden(mx.array([[1]]), cache)


def test_caches_of_others_are_refused() -> None:
    leader, other = Leader(part(), []), part()
    with pytest.raises(ValueError, match="expected caches that make_cache of this model made"):
        leader.hidden(mx.array([[1]]), other.make_cache())
    with pytest.raises(ValueError, match="that were told where the tokens stand"):
        leader.hidden(mx.array([[1]]), leader.make_pages(1, 4))


@pytest.mark.parametrize(
    "order",
    [
        MakeCache(3, None, 16),
        CountPages(1 << 40, 32, None),
        MakePages(4, 100, 32, 8),
        CopyPages(4, [[1, 2], [3, 4]]),
        Pass(1, 7, [[1, 2]]),
        PagedPass(4, [[1], [2]], [0], [[1, 0], [2, 3]], [0, 1, 2], [3, 9], [2, 8], [34, 96]),
        Score(last_only=True),
        FindBest(20),
    ],
)
def test_orders_come_as_they_were_sent(order: Order) -> None:
    assert encoded(order).count(b"\n") == 1
    assert decoded(encoded(order)) == order


@pytest.mark.parametrize("line", [b"[]\n", b'{"order": "Leave"}\n', b'{"order": "FindBest"}\n'])
def test_an_order_that_is_not_known_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="do all ranks run the same version"):
        decoded(line)


Said = queue.SimpleQueue[tuple[int, str]]
Ends = tuple[Line, socket.socket, Said]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """A line from rank 1 to rank 0, rank 0's end of it, and what is said of a loss."""
    monkeypatch.setattr(line_module, "LIMIT", 0.4)
    monkeypatch.setattr(line_module, "BEAT", 0.05)
    said: Said = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    line = Line(ours, 0, lambda rank, why: said.put((rank, why)))
    with ours, theirs:
        yield line, theirs, said
        line.close()


def test_lines_come_through_and_signs_of_life_do_not(ends: Ends) -> None:
    line, theirs, said = ends
    assert not line.ended
    theirs.sendall(b"one\n\ntwo\nend\n")
    assert list(line.received()) == [b"one\n", b"two\n"]
    assert line.ended
    assert theirs.recv(10).startswith(b"\n")
    line.close()
    with pytest.raises(queue.Empty):
        said.get(timeout=0.6)


def test_an_end_that_closes_is_lost_at_once(ends: Ends) -> None:
    _, theirs, said = ends
    theirs.close()
    assert said.get(timeout=0.3) == (0, "has left")


def test_an_end_that_says_nothing_is_lost_after_a_while(ends: Ends) -> None:
    assert ends[2].get(timeout=5) == (0, "has given no sign of life for 0 s")


def test_signs_of_life_are_enough(ends: Ends) -> None:
    _, theirs, said = ends
    for _ in range(8):
        theirs.sendall(b"\n")
        with pytest.raises(queue.Empty):
            said.get(timeout=0.1)


def test_an_end_in_the_middle_of_an_answer_is_a_loss(ends: Ends) -> None:
    _, theirs, said = ends
    theirs.sendall(b"end\n")
    assert said.get(timeout=5) == (0, "has ended in the middle of an answer")


@pytest.mark.parametrize(
    ("error", "rank_0_ended", "before", "said"),
    [
        (RuntimeError("lost"), False, [], "lost"),
        (RuntimeError("lost"), True, [], "rank 0 has ended before the others: it says why"),
        (ValueError("no"), True, ["deaf"], "no"),
    ],
)
def test_a_failed_sum_leaves_it_to_the_lines_to_say_who_is_gone(
    error: Exception,
    rank_0_ended: bool,
    before: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[object] = []

    class Leaving(Recorder):
        ended = rank_0_ended

        def let_go(self) -> None:
            events.append("deaf")

        def close(self) -> None:
            events.append("left")

    monkeypatch.setattr(member_module.time, "sleep", events.append)
    group = mx.distributed.init()
    with pytest.raises(type(error), match=f"^{said}$"), Member(group, Ranks(group), [Leaving()]):
        raise error
    assert events == [*before, member_module.NOTICED, "left"]


def test_a_neighbor_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, tries = mx.distributed.init(), []

    def init(*, strict: bool) -> mx.distributed.Group:
        tries.append(strict)
        if len(tries) < 3:
            raise RuntimeError("[ring] Couldn't connect (error: 111)")
        return alone

    monkeypatch.setattr(member_module.mx.distributed, "init", init)
    assert Member.join(lambda _rank, _why: None) is None
    assert tries == [True] * 3
    tries.clear()
    monkeypatch.setattr(member_module, "JOINING", 15)
    with pytest.raises(RuntimeError, match=r"come together: \[ring\] Couldn't .* MLX_HOSTFILE, a"):
        Member.join(lambda _rank, _why: None)
    assert tries == [True]


def test_the_only_process_of_a_launcher_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("\n")
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    monkeypatch.setattr(member_module.mx.distributed, "init", None)
    assert Member.join(lambda _rank, _why: None) is None
