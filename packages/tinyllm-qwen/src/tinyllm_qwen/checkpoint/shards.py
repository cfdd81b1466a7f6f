"""The safetensors files of a checkpoint."""

from pathlib import Path

from tinyllm_qwen.config.fields import label, show
from tinyllm_qwen.config.json_object import read_json_object
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.regular_file import exists_or_broken_link

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARDS = 10_000  # the largest Qwen has 118
_OTHER_FORMATS = (
    "*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
    "*.npz",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.pkl",
    "*.ckpt",
)


def find_shards(folder: Path) -> list[Path]:
    """List the files that hold the tensors of a checkpoint.

    As in transformers, "model.safetensors" takes precedence over an index. Of the index, only the
    names of the files are used. The tensors of a file follow from its header. Without an index, or
    if none of its files is there, a complete set of files "model-00001-of-00002.safetensors" and so
    on is taken, as mlx-lm takes any. Every returned file exists and lies directly in the folder.

    Raises:
        CheckpointError: if there is neither "model.safetensors" nor an index, or a shard is missing
            or outside of the folder.
    """
    if exists_or_broken_link(folder / SINGLE):
        return [folder / SINGLE]
    index = folder / INDEX
    if not exists_or_broken_link(index):
        if shards := _complete_set(folder):
            return shards
        raise _nothing_to_load(folder)
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index}: weight_map: expected file names, got {show(weight_map)}: download it again"
        )
    names: set[str] = set()
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _stays_inside(name):
            raise CheckpointError(
                f"{index}: {label(tensor)}: expected the name of a .safetensors file in this "
                f"folder, got {show(name)}: download it again"
            )
        names.add(name)
    if len(names) > MAX_SHARDS:
        raise CheckpointError(
            f"{index}: expected at most {MAX_SHARDS} shards, got {len(names)}: download it again"
        )
    missing = sorted(name for name in names if not exists_or_broken_link(folder / name))
    if len(missing) == len(names) and (shards := _complete_set(folder)):
        return shards  # quantized files beside the index of their source
    if missing:
        listed = ", ".join(name[:80] for name in missing[:10])
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(names)} shards are missing ({listed}): download "
            "the checkpoint again"
        )
    return [folder / name for name in sorted(names)]


def _stays_inside(name: str) -> bool:
    """Return True if a name from an index is a file name without a path, on any platform."""
    return name.endswith(".safetensors") and name.isprintable() and not set(name) & set("/\\:")


def _complete_set(folder: Path) -> list[Path]:
    """Return the files 1 to n of n by their names; no files unless all are there, and no others."""
    found = sorted(folder.glob("model-*-of-*.safetensors"))
    expected = [f"model-{n:05}-of-{len(found):05}.safetensors" for n in range(1, len(found) + 1)]
    return found if [path.name for path in found] == expected else []


def _nothing_to_load(folder: Path) -> CheckpointError:
    """Return the error for a folder without weights, with a remedy that fits its other files."""
    stray = sorted(path.name for path in folder.glob("*.safetensors"))
    if stray:
        return CheckpointError(
            f"{folder}: expected {SINGLE} or {INDEX}, found {', '.join(stray[:3])} alone: "
            f"download {INDEX} of the same repository too"
        )
    other = sorted(path.name for pattern in _OTHER_FORMATS for path in folder.glob(pattern))
    if other:
        return CheckpointError(
            f"{folder}: expected {SINGLE}, found {other[0]}: only safetensors are read, since "
            "pickled weights can run code: use a repository that has them, or convert this one "
            "with transformers' save_pretrained"
        )
    return CheckpointError(
        f"{folder}: expected {SINGLE} or {INDEX}, found neither: is this the folder of a "
        "checkpoint, downloaded whole?"
    )
