"""`bench soak`, for some seconds, and that it sees what has grown."""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from tinyllm_bench.serving.soak import Soak
from tinyllm_bench.serving.vitals import Vitals, highest

IDLE = Vitals(
    memory=100_000_000, pages=0, running=0, waiting=0, in_flight=1, handles=9, sockets=1, threads=4
)


@pytest.mark.exhaustive
def test_a_server_gets_back_to_where_it_was(bench: Callable[[str], tuple[int, str, str]]) -> None:
    code, out, err = bench("soak --minutes 0.2 --clients 12")
    # Of memory a few seconds say nothing: what is made once and kept is still being made.
    assert [line for line in err.splitlines() if not line.startswith("bench: memory")] == []
    assert code == (1 if err else 0)
    rows = [line.split() for line in out.splitlines()]
    held = {row[0]: [int(count.replace(",", "")) for count in row[1:]] for row in rows[4:]}
    assert held.keys() == {each.name for each in fields(Vitals)}
    assert held["pages"][0] == held["pages"][2] == 0 < held["pages"][1]
    assert held["sockets"][0] == held["sockets"][2] < held["sockets"][1]
    assert held["running"][1] > 4
    for outcome in ("answered", "left", "refused"):
        assert outcome in out


@pytest.mark.parametrize("name", [each.name for each in fields(Vitals)])
def test_what_has_grown_is_said(name: str) -> None:
    more = replace(IDLE, **{name: 2 * getattr(IDLE, name) + 1})
    (said,) = Soak(1.0, Counter(answered=3), IDLE, more, more).complaints
    assert said.startswith(f"{name}: ")
    assert Soak(1.0, Counter(left=3), IDLE, more, IDLE).complaints == []
    assert highest(IDLE, more, IDLE) == more


def test_a_request_that_failed_is_said() -> None:
    visits = Counter({"answered": 2, "Server error '500'": 4})
    assert Soak(1.0, visits, IDLE, IDLE, IDLE).complaints == [
        "4 requests failed: Server error '500'"
    ]
