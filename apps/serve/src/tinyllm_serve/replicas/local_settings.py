"""The settings of a replica."""

from dataclasses import replace

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.parallel.split import HEADS

from tinyllm_serve.errors import UsageError
from tinyllm_serve.settings import Settings


def local_settings(settings: Settings) -> Settings:
    """Return the settings with models in folders of this machine, and without the keys.

    Models on the Hub are downloaded once, here. The listening process checks keys. A replica only
    describes them at /docs, for which a placeholder is enough.

    Raises:
        UsageError: if all replicas would write one file, or their models are to be split.
        CheckpointError, HubError: if a model is not available.
    """
    if settings.prefix_cache_path is not None:
        raise UsageError("--prefix-cache-path: expected none with --ray: replicas come and go")
    if settings.split != str(HEADS):
        raise UsageError("--split: expected none with --ray: each replica has the whole model")
    draft = settings.draft_model
    return replace(
        settings,
        served_model_name=settings.model_name,
        model=str(resolve(settings.model, settings.revision).absolute()),
        revision=None,
        draft_model=None if draft is None else str(resolve(draft).absolute()),
        api_key=None if settings.api_key is None else ["placeholder"],
    )
