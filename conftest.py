"""Selection of tests: a run of the whole workspace leaves out exhaustive tests.

`uv run pytest` is the quick check after a change. `uv run pytest packages/tinyllm-engine` runs all
tests of that member. CI runs every member so.

Ctrl-C also ends a run while Python collects garbage. Tests of signals also run in the background
and under nohup.
"""

import signal
import sys
from collections.abc import Generator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the long form of tests/attack."""
    parser.addoption("--full", action="store_true", help="run the long form of tests/attack")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked as exhaustive, unless files or folders are named."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    left = [item for item in items if item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Stop after the current test if Ctrl-C comes while Python collects garbage.

    Hypothesis measures the time of each collection in a callback. Python ignores the
    KeyboardInterrupt there: pytest would fail the test with a warning, and continue.

    Programs that a shell starts in the background ignore Ctrl-C, and those of nohup ignore SIGHUP.
    Their children would too, and tests send them both.
    """
    report = sys.unraisablehook

    def stop_or_report(error: "sys.UnraisableHookArgs") -> None:
        if error.exc_type is KeyboardInterrupt:
            session.shouldstop = "Ctrl-C"
        else:
            report(error)

    sys.unraisablehook = stop_or_report
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.getsignal(signal.SIGHUP)
    if hangup == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # children do not inherit a handler
    try:
        return (yield)
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGHUP, hangup)
