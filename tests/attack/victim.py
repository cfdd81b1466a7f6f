"""A server under attack, its watcher, and the cost of an attack."""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from attack.watcher import Readings
from tinyllm_serve.testing import Server

HOSTILE, GOOD, THIRD = KEYS = ("hostile", "well-behaved", "third")
FAVORED = "favored"
"""A key of weight 20. While another key is active, the server delays a body of 10 MB by 4 seconds,
divided by the weight."""
CHAT = "/v1/chat/completions"
MEGABYTE = 1_000_000

WATCHER = str(Path(__file__).with_name("watcher.py"))

SETTLE_SECONDS = 20.0
"""Most seconds that the server has after an attack to return its memory and to end its work."""


@dataclass(frozen=True)
class Cost:
    """Cost of an attack to the server and to a well-behaved stream of another key.

    Attributes:
        seconds: duration of the attack.
        stall: longest wait of /health, in seconds.
        memory: most megabytes above the memory before the attack.
        kept: megabytes that the server holds after the attack.
        rate: tokens/s of the stream, as a share of its tokens/s before the attack.
        gap: longest time between two tokens of the stream, in seconds.
        first_token: longest time to a first token, in seconds.
    """

    seconds: float
    stall: float
    memory: float
    kept: float
    rate: float
    gap: float
    first_token: float


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Highest costs that an attack may have: the fields of `Cost`, and the lowest rate.

    The defaults leave room for other work of a machine with two processors. An idle one needs a
    tenth of them, and a server without limits ten times as much.
    """

    seconds: float = 10.0
    stall: float = 1.5
    memory: float = 150.0
    kept: float = 30.0
    rate: float = 0.0
    gap: float = 2.0
    first_token: float = 3.0

    @property
    def relaxed(self) -> "Budget":
        """The budget of a short run, beside other tests on the same machine."""
        return replace(
            self,
            stall=2 * self.stall,
            rate=self.rate / 4,
            gap=2 * self.gap,
            first_token=2 * self.first_token,
        )

    @property
    def of_several(self) -> "Budget":
        """The budget of several equal attacks at once."""
        return replace(self, seconds=60.0, memory=3 * self.memory, kept=2 * self.kept)

    def excess(self, cost: Cost) -> list[str]:
        """Return a line for each cost that is out of the budget."""
        found = [
            f"{name}: expected at most {getattr(self, name):g}, got {getattr(cost, name):.3g}"
            for name in ("seconds", "stall", "memory", "kept", "gap", "first_token")
            if getattr(cost, name) > getattr(self, name)
        ]
        if cost.rate < self.rate:
            found.append(f"rate: expected at least {self.rate:g}, got {cost.rate:.3g}")
        return found


def is_defect(answer: httpx.Response) -> bool:
    """Return True for an answer with an error of the server, which no request may cause.

    A full server answers 503. A grammar that exceeds a limit in the middle of an answer is a 500,
    because the part that has been generated is no valid answer.
    """
    if answer.status_code < 500 or answer.status_code == 503:
        return b"internal_error" in answer.content
    return answer.json()["error"]["code"] != "grammar_limit"


class Costs:
    """The costs of all attacks of a run."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: list[tuple[str, Cost, Budget]] = []

    def check(
        self, name: str, victim: "Victim", attack: "Callable[[Victim], None]", budget: Budget
    ) -> Cost:
        """Attack a server, record the cost, and check it against the budget."""
        # A short time is enough for the memory before. A budget of tokens/s needs a longer one.
        cost = victim.cost(attack, budget.kept, calm=1.0 if budget.rate else 0.3)
        self._rows.append((name, cost, budget))
        assert not budget.excess(cost), cost
        return cost

    def table(self) -> str:
        """Return the costs, and the budgets in parentheses, as a Markdown table."""
        names = [each.name for each in fields(Cost)]
        lines = [f"| attack | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for attack, cost, budget in self._rows:
            cells = [f"{getattr(cost, name):.3g} ({getattr(budget, name):g})" for name in names]
            lines.append(f"| {attack} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n" if self._rows else ""


class Victim:
    """A server with four keys, and the process that watches it."""

    def __init__(self, *options: str, ready: bool = True, watched: bool = True) -> None:
        """Start the server and its watcher, and warm up both.

        Without `watched` there is no watcher, whose stream is work for the server.
        """
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "keys.toml"
        file.write_text(f'[[keys]]\nname = "{FAVORED}"\nkey = "{FAVORED}"\nweight = 20\n')
        file.chmod(0o600)
        options = ("--api-key-file", str(file), *options)
        self.server = Server(*options, ready=ready, TINYLLM_API_KEY=" ".join(KEYS))
        self.url, self.pid = self.server.url, self.server.process.pid
        self._watcher: subprocess.Popen[str] | None = None
        if not watched:
            return
        self._watcher = subprocess.Popen(
            [sys.executable, WATCHER, self.url, str(self.pid), GOOD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.check()
        self.read()

    def __enter__(self) -> "Victim":
        """Return the server."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End the watcher and the server."""
        self.close()

    def close(self) -> None:
        """End the watcher and the server."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
        with self.server, self._folder:
            pass

    def read(self) -> Readings:
        """Return the readings since the last call."""
        assert self._watcher is not None
        assert self._watcher.stdin is not None
        assert self._watcher.stdout is not None
        self._watcher.stdin.write("\n")
        self._watcher.stdin.flush()
        return Readings(**json.loads(self._watcher.stdout.readline()))

    @property
    def alive(self) -> bool:
        """True if the process of the server runs."""
        return self.server.process.poll() is None

    def client(self, key: str = HOSTILE, timeout: float = 180.0) -> httpx.Client:
        """Return a client with a key."""
        headers = {"Authorization": f"Bearer {key}"}
        # `verify` loads certificates otherwise, which takes 20 ms of a processor for each client.
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout, verify=False)

    def post(
        self, path: str, body: bytes | Mapping[str, object], key: str = HOSTILE
    ) -> httpx.Response:
        """Send a request and return its answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.client(key) as client:
            return client.post(path, content=content, headers={"Content-Type": "application/json"})

    def connect(self) -> socket.socket:
        """Open a connection."""
        address = urlsplit(self.url)
        connection = socket.create_connection((address.hostname, address.port))
        connection.settimeout(60)
        return connection

    def raw(self, path: str, body: bytes, length: int | None = None, key: str = HOSTILE) -> bytes:
        """Return the bytes of a POST request. `length` is that of its head, if it differs."""
        return (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
        ).encode() + body

    def metrics(self) -> dict[str, float]:
        """Return the metrics without labels, by their names after `tinyllm:`."""
        with self.client(THIRD) as client:
            lines = client.get("/metrics").text.splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith("tinyllm:")]
        return {
            name.removeprefix("tinyllm:"): float(value) for name, value in found if "{" not in name
        }

    def wait_for(self, name: str, wanted: Callable[[float], bool], seconds: float = 20.0) -> None:
        """Wait until a metric has a wanted value.

        Raises:
            TimeoutError: if it has not within `seconds`.
        """
        end = time.monotonic() + seconds
        while not wanted(value := self.metrics()[name]):
            if time.monotonic() > end:
                raise TimeoutError(f"{name}: got {value}")
            time.sleep(0.02)

    def wait_until_idle(self, seconds: float = 20.0) -> None:
        """Wait until the engine has no request but the stream of the watcher."""
        self.wait_for("num_requests_waiting", lambda value: value == 0, seconds)
        self.wait_for("num_requests_running", lambda value: value <= 1, seconds)

    def check(self, key: str = GOOD) -> None:
        """Ask a question and check its answer."""
        question = [{"role": "user", "content": "what does rmsnorm do?"}]
        answer = self.post(CHAT, {"messages": question, "max_tokens": 60}, key)
        assert answer.status_code == 200, answer.text[:500]
        assert "root mean square" in answer.json()["choices"][0]["message"]["content"]

    def check_log(self, seen: int = 0) -> None:
        """Check that no exception is in the log after `seen` lines, and that no line is long."""
        for entry in self.server.log()[seen:]:
            assert "at" not in entry, entry  # the traceback of an exception
            assert len(json.dumps(entry)) < 10_000

    def cost(self, attack: "Callable[[Victim], None]", kept: float, calm: float) -> Cost:
        """Attack the server, and check that it works afterwards.

        The `calm` seconds before the attack give the memory and the tokens/s to compare with. After
        it, the server has `SETTLE_SECONDS` to return all memory but `kept` megabytes.
        """
        self.read()
        time.sleep(calm)
        before = self.read()
        attack(self)
        during = self.read()
        assert self.alive, f"the server ended with {self.server.process.poll()}"
        self.check()
        after = self.settle(before.memory + kept * MEGABYTE)
        usual = before.tokens / before.seconds
        return Cost(
            seconds=during.seconds,
            stall=max(during.stall, after.stall),
            memory=(max(during.peak, after.peak) - before.memory) / MEGABYTE,
            kept=(after.memory - before.memory) / MEGABYTE,
            rate=during.tokens / during.seconds / usual if usual else 0.0,
            gap=max(during.gap, after.gap),
            first_token=max(during.first_token, after.first_token),
        )

    def settle(self, memory: float) -> Readings:
        """Wait until the server has at most this memory, and return the readings.

        The readings of a server that has more after `SETTLE_SECONDS` show so.
        """
        total = Readings()
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            time.sleep(0.3)
            last = self.read()
            for name in ("stall", "peak", "gap", "first_token"):
                setattr(total, name, max(getattr(total, name), getattr(last, name)))
            total.memory = last.memory
            if last.memory <= memory or time.monotonic() > end:
                return total
