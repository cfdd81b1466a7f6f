"""Checks of the model's files that need neither the network nor the weights."""

from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.hub import resolve_local

from tinyllm_serve.settings import DRAFT_HEAD, Settings


def check_model_files(settings: Settings) -> None:
    """Check that the folders of the model and the draft model exist, and read their configs.

    Models on the Hub are not checked, because that may take a download.

    Raises:
        CheckpointError: if a folder or its config cannot be used.
    """
    models = [(settings.model, settings.revision)]
    if settings.draft_model not in (None, DRAFT_HEAD):
        models.append((settings.draft_model, None))
    for name, revision in models:
        folder = resolve_local(name, revision)
        if folder is not None:
            QwenConfig.from_folder(folder)
