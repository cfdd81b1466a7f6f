"""What a run of the whole workspace leaves to the runs of its members.

`uv run pytest` is what one waits for after a change; `uv run pytest packages/tinyllm-engine` takes
all that the member has, and so does CI, with each member alone.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked as exhaustive, unless files or folders are named."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    left = [item for item in items if item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
