"""Settings as a replica gets them."""

from dataclasses import replace

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.parallel.split import HEADS

from tinyllm_serve.errors import UsageError
from tinyllm_serve.settings import Settings


def local_settings(settings: Settings) -> Settings:
    """The same model from folders of this machine, and without keys.

    What is on the Hub is fetched once, here. A replica has no need of keys: they are asked for
    before it is.

    Raises:
        UsageError: if there is a file that all replicas would write, or a split of their models.
        CheckpointError, HubError: if a model cannot be had.
    """
    if settings.prefix_path is not None:
        raise UsageError("--prefix-path: expected none with --ray: replicas come and go")
    if settings.split != str(HEADS):
        raise UsageError("--split: expected none with --ray: each replica has all of the model")
    draft = settings.draft_model
    return replace(
        settings,
        name=settings.served_name,
        model=str(resolve(settings.model, settings.revision).absolute()),
        revision=None,
        draft_model=None if draft is None else str(resolve(draft).absolute()),
        api_keys=(),
    )
