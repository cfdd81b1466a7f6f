"""What Ray reads from the environment, before it is imported."""

import os
from importlib.util import find_spec

from tinyllm_serve.errors import UsageError

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it would send reports to its makers
    # It would upload the folder in which `uv run` was called, and build an environment there.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_AUTH_MODE": "token",  # its processes listen to those who know ~/.ray/auth_token
    "RAY_worker_niceness": "0",  # replicas would wait for everything else on this machine
    # Without clusters of machines its processes listen on the loopback address alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray hides all devices from processes that have not reserved one.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def prepare_environment() -> None:
    """Set it, for this process and those that Ray starts.

    Raises:
        UsageError: if Ray is not installed.
    """
    if find_spec("ray") is None:
        raise UsageError(
            "--ray: expected Ray to be installed: run 'uv run --extra ray tinyllm-serve --ray', "
            "or install tinyllm-serve[ray]"
        )
    os.environ.update(_QUIET)
