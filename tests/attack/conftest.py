"""Servers under attack, and a table of what the attacks cost."""

from collections.abc import Iterator

import pytest
from attack.victim import Costs, Victim

ORIGIN = "https://a.example"
"""Origin of web pages that may send requests."""

COSTS = pytest.StashKey[Costs]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin the table of costs."""
    config.stash[COSTS] = Costs()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table of costs."""
    if table := config.stash[COSTS].table():
        terminalreporter.section("costs")
        terminalreporter.write(table)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long form unless it is asked for, and all attacks of a quick check."""
    attacks = [item for item in items if item.path.is_relative_to(__file__.rpartition("/")[0])]
    for item in attacks:
        item.add_marker(pytest.mark.exhaustive)
    if not config.getoption("full"):
        left = [item for item in attacks if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """True if the long form of the attacks is run."""
    return bool(pytestconfig.getoption("full"))


@pytest.fixture(scope="session")
def costs(pytestconfig: pytest.Config) -> Costs:
    """The table of costs, printed at the end of a run."""
    return pytestconfig.stash[COSTS]


@pytest.fixture(scope="session")
def servers() -> Iterator[list[Victim]]:
    """The servers of a run: one, or more if an attack has ended it."""
    started: list[Victim] = []
    yield started
    for each in started:
        each.close()


@pytest.fixture
def attacked(servers: list[Victim]) -> Iterator[Victim]:
    """A server with the built-in model, which must not have logged an exception."""
    if not servers or not servers[-1].alive:
        servers.append(Victim("--allowed-origins", ORIGIN))
    seen = len(servers[-1].server.log())
    yield servers[-1]
    servers[-1].check_log(seen)
