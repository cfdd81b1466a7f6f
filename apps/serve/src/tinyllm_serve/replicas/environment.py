"""Environment variables that Ray reads when it is imported."""

import os
from importlib.util import find_spec

from tinyllm_serve.errors import UsageError

_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray would send reports to its developers
    # Ray would upload the folder in which `uv run` was called, and build an environment there.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_AUTH_MODE": "token",  # Ray's ports require the token in ~/.ray/auth_token
    "RAY_worker_niceness": "0",  # replicas would yield to every other process of this machine
    # Without clusters of machines Ray's processes listen on the loopback address alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray hides all devices from processes that have not reserved one.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def prepare_environment() -> None:
    """Set the variables for this process and for the processes that Ray starts.

    Raises:
        UsageError: if Ray is not installed.
    """
    if find_spec("ray") is None:
        raise UsageError(
            "--ray: expected Ray to be installed: run 'uv run --extra ray tinyllm-serve --ray', "
            "or install tinyllm-serve[ray]"
        )
    os.environ.update(_VARIABLES)
