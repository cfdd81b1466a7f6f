"""The settings of a replica, and the environment variables that Ray reads when it is imported."""

import os
from dataclasses import replace
from importlib.util import find_spec

from tinyllm_cli.messages import UsageError
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.partition.split import HEADS

from tinyllm_serve.service import generation_overrides, template_defaults
from tinyllm_serve.settings import DRAFT_HEAD, Settings

_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray would send reports to its developers
    # Ray would upload the folder in which `uv run` was called, and build an environment there.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # During shutdown, the cancelled requests would start a second Ray, with its default settings.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_AUTH_MODE": "token",  # Ray's ports require the token in ~/.ray/auth_token
    "RAY_worker_niceness": "0",  # replicas would yield to every other process of this machine
    # If clusters of machines are not allowed, Ray's processes listen on the loopback address alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray hides all devices from processes that have not reserved one.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def prepare_environment() -> None:
    """Set Ray's variables for this process and for the processes that Ray starts.

    Raises:
        UsageError: if Ray is not installed.
    """
    if find_spec("ray") is None:
        raise UsageError(
            "--ray: expected Ray to be installed: run 'uv run --extra ray tinyllm serve --ray', "
            "or install tinyllm-serve[ray]"
        )
    os.environ.update(_VARIABLES)


def local_settings(settings: Settings) -> Settings:
    """Return the settings with models in folders of this machine, and without the keys.

    Models on the Hub are downloaded once, here. The listening process checks keys. A replica only
    describes them at /docs, for which a placeholder is enough.

    Raises:
        UsageError: if all replicas would write one file, each model would be split, or an option
            is not valid.
        CheckpointError, HubError: if a model is not available.
    """
    if settings.prefix_cache_path is not None:
        raise UsageError("--prefix-cache-path: expected none with --ray: replicas come and go")
    if settings.split != str(HEADS):
        raise UsageError("--split: expected none with --ray: each replica has the whole model")
    generation_overrides(settings)
    template_defaults(settings)
    draft_model = settings.draft_model
    if draft_model not in (None, DRAFT_HEAD):
        draft_model = str(resolve(draft_model).absolute())
    return replace(
        settings,
        served_model_name=settings.model_names,
        model=str(resolve(settings.model, settings.revision).absolute()),
        revision=None,
        draft_model=draft_model,
        api_key=["placeholder"] if settings.has_keys else None,
        api_key_file=None,
    )
