"""The models in the Hugging Face cache, and the built-in one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CachedRepoInfo, CacheNotFound, constants, scan_cache_dir
from tinyllm_qwen import CheckpointError, QwenConfig
from tinyllm_qwen.checkpoint.hub import BUILT_IN, resolve
from tinyllm_qwen.checkpoint.shards import find_shards


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model whose files are on this machine.

    Attributes:
        name: owner/name on the Hub, or "pico".
        folder: the folder of the checkpoint.
        nbytes: the size of all files on the disk, in bytes, over all revisions.
        revisions: the commits on the disk, the newest first; empty for the built-in model.
        reason: the reason why tinyllm cannot run the model; empty if it can.
        config: the architecture; None if tinyllm cannot run the model.
    """

    name: str
    folder: Path
    nbytes: int
    revisions: Sequence[str]
    reason: str
    config: QwenConfig | None

    @property
    def architecture(self) -> str:
        """The model type and the format of the weights, such as "qwen3, 4 bits"."""
        if self.config is None:
            return "-"
        packed = self.config.quantization
        return f"{self.config.model_type}, " + (
            "not quantized" if packed is None else f"{packed.default.bits} bits"
        )


def built_in() -> CachedModel:
    """Return the model that is part of the installation.

    Raises:
        CheckpointError: if the installation lacks it.
    """
    folder = resolve(BUILT_IN)
    return _described(BUILT_IN, folder, sum(file.stat().st_size for file in folder.iterdir()), ())


def cached_models() -> list[CachedModel]:
    """Return the models of the Hugging Face cache, sorted by name; none if there is no cache."""
    return [_of(repository) for repository in cached_repositories()]


def cached_repositories() -> list[CachedRepoInfo]:
    """Return the repositories of models in the cache, sorted by name."""
    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return []
    models = [each for each in found.repos if each.repo_type == "model" and each.revisions]
    return sorted(models, key=lambda each: each.repo_id)


def _of(repository: CachedRepoInfo) -> CachedModel:
    """Return the model of a repository, in the revision that was downloaded last."""
    newest = sorted(repository.revisions, key=lambda each: each.last_modified, reverse=True)
    commits = [each.commit_hash for each in newest]
    folder = newest[0].snapshot_path
    return _described(repository.repo_id, folder, repository.size_on_disk, commits)


def _described(name: str, folder: Path, nbytes: int, revisions: Sequence[str]) -> CachedModel:
    config, reason = None, ""
    try:
        config = QwenConfig.from_folder(folder)
        find_shards(folder)
    except CheckpointError as error:
        config, reason = None, " ".join(str(error).split())
    return CachedModel(name, folder, nbytes, revisions, reason, config)
