"""`resolve` turns a model name into a folder, or its error has a remedy. No test downloads."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from tinyllm_qwen.checkpoint import hub, repository
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.errors import CheckpointError, HubError

REPOSITORY = "Qwen/Qwen3-0.6B"
COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"
RESPONSE = Mock(headers={}, status_code=401)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work offline with an empty cache, so that no test downloads by mistake."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


def fill_cache(cache: Path, files: dict[str, str], ref: str = "main") -> Path:
    """Lay out a cached repository as huggingface_hub does: blobs, snapshots, refs."""
    root = cache / "models--Qwen--Qwen3-0.6B"
    snapshot = root / "snapshots" / COMMIT
    for folder in (snapshot, root / "blobs", root / "refs"):
        folder.mkdir(parents=True)
    (root / "refs" / ref).write_text(COMMIT)
    for number, (name, text) in enumerate(files.items()):
        (root / "blobs" / str(number)).write_text(text)
        (snapshot / name).symlink_to(Path("../../blobs") / str(number))
    return snapshot


def test_an_existing_folder_is_itself(tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "qwen").mkdir()
    assert resolve("~/qwen") == tmp_path / "qwen"


def test_a_folder_wins_over_a_repository_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / REPOSITORY).mkdir(parents=True)
    assert resolve(REPOSITORY) == Path(REPOSITORY)


@pytest.fixture
def built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the built-in checkpoint."""
    folder = tmp_path / "installed" / "pico"
    folder.mkdir(parents=True)
    monkeypatch.setattr(hub, "_BUILT_IN_FOLDER", folder)
    return folder


def test_pico_is_the_built_in_model(built_in: Path) -> None:
    assert resolve("pico") == built_in


def test_a_folder_called_pico_wins_only_if_it_is_a_checkpoint(
    tmp_path: Path, built_in: Path
) -> None:
    (tmp_path / "pico").mkdir()
    assert resolve("pico") == built_in
    assert resolve("./pico") == Path("pico")
    (tmp_path / "pico" / "config.json").write_text("{}")
    assert resolve("pico") == Path("pico")


def test_a_file_called_pico_does_not_hide_the_built_in_model(
    tmp_path: Path, built_in: Path
) -> None:
    (tmp_path / "pico").write_text("")
    assert resolve("pico") == built_in


def test_an_installation_without_the_built_in_model_says_so(built_in: Path) -> None:
    built_in.rmdir()
    with pytest.raises(CheckpointError, match="missing from this installation"):
        resolve("pico")


@pytest.mark.parametrize("name", ["pico", "."])
def test_a_revision_of_something_local_is_refused(built_in: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"revision: 'main' .* only repositories"):
        resolve(name, "main")


@pytest.mark.parametrize(
    "name", ["absent", "./absent/model", "/absent", "a/b/c", "-x/y", "owner/name with space", ""]
)
def test_an_unknown_name_is_neither_a_folder_nor_a_repository(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"neither a folder here nor .* repository"):
        resolve(name)


@pytest.mark.parametrize("name", ["x" * 5000, "~no-such-user/qwen"])
def test_a_name_that_cannot_be_a_folder_is_refused_in_short(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be a folder .*check the name") as caught:
        resolve(name)
    assert len(str(caught.value)) < 400


def test_a_path_is_never_a_repository() -> None:
    with pytest.raises(CheckpointError, match="neither a folder here nor"):
        resolve(Path(REPOSITORY))


def test_a_file_is_refused_with_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"is a file: .* {tmp_path}$"):
        resolve(file)
    with pytest.raises(CheckpointError, match=f"is a file: .* {tmp_path}$"):
        resolve(file.name)


def test_a_gguf_file_is_refused_with_the_formats_that_are_read(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"GGUF file, .*: name .* \(safetensors\)$"):
        resolve(file)


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_cached_repository_is_found_offline(tmp_path: Path, revision: str | None) -> None:
    snapshot = fill_cache(tmp_path / "hub", {"config.json": "{}", "model.safetensors": ""})
    assert repository.fetch(REPOSITORY, revision) == snapshot
    assert (repository.fetch(REPOSITORY, revision) / "config.json").read_text() == "{}"


@pytest.mark.parametrize("offline", [True, False])
def test_the_cache_alone_is_asked_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, offline: bool
) -> None:
    download = Mock(return_value=str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(repository, "HfApi", Mock(side_effect=TimeoutError))
    monkeypatch.setattr(repository, "snapshot_download", download)
    assert repository.fetch(REPOSITORY, COMMIT) == tmp_path
    assert download.call_args.kwargs["local_files_only"] is offline


def test_a_repository_that_is_not_cached_is_an_error_offline(tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"incomplete in the cache .*HF_HUB_OFFLINE.*unset it"):
        repository.fetch(REPOSITORY, None)
    fill_cache(tmp_path / "hub", {"config.json": "{}"})
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        repository.fetch(REPOSITORY, "v2")


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (errors.RepositoryNotFoundError("404", response=RESPONSE), "neither a folder .*hf auth"),
        (errors.GatedRepoError("403", response=RESPONSE), f"gated: .*co/{REPOSITORY}.*hf auth"),
        (errors.RevisionNotFoundError("404", response=RESPONSE), "has no revision 'v9'"),
        (errors.HFValidationError("bad"), "neither a folder here nor a repository"),
        (errors.LocalEntryNotFoundError("x"), "cannot be reached .*check the network"),
        (OSError(errno.ENOSPC, "full"), "does not fit on the disk.*HF_HOME"),
        (PermissionError(errno.EACCES, "denied"), "cannot be written to the cache"),
        (OSError(errno.EROFS, "read-only"), "cannot be written to the cache.*HF_HOME"),
        (errors.HfHubHTTPError("502\nlong", response=RESPONSE), r"HfHubHTTPError: 502\): run it"),
        (TimeoutError("slow"), r"could not be fetched \(TimeoutError: slow\)"),
    ],
)
def test_errors_of_the_hub_are_explained(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, message: str
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(repository, "HfApi", Mock(side_effect=raised))
    monkeypatch.setattr(repository, "snapshot_download", Mock(side_effect=raised))
    with pytest.raises(HubError, match=message) as caught:
        repository.fetch(REPOSITORY, "v9")
    assert caught.value.__cause__ is raised
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_name_is_resolved_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: str | None
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(HubError, match=rf"^{REPOSITORY} is missing .*HF_HUB_OFFLINE.*unset it"):
        resolve(REPOSITORY, revision)
    snapshot = fill_cache(tmp_path / "hub", {"config.json": "{}", "model.safetensors": ""})
    assert resolve(REPOSITORY, revision) == snapshot


def test_a_process_that_ends_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(HubError, match=r"could not be fetched .* ended with 1"):
        resolve(REPOSITORY)


def test_only_the_files_that_a_model_needs_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = Mock(return_value=str(tmp_path))
    monkeypatch.setattr(repository, "snapshot_download", download)
    assert repository.fetch(REPOSITORY, "v9") == tmp_path
    patterns = download.call_args.kwargs["allow_patterns"]
    wanted = ["model-00001-of-00002.safetensors", "config.json", "chat_template.jinja", "LICENSE"]
    unwanted = ["pytorch_model.bin", "model.gguf", "README.md", "onnx/model.onnx"]
    filtered = huggingface_hub.utils.filter_repo_objects(wanted + unwanted, allow_patterns=patterns)  # type: ignore[attr-defined]
    assert list(filtered) == wanted
    assert download.call_args.kwargs["revision"] == "v9"


@pytest.fixture
def hub_of_3_gb(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A Hub whose repository has 2 GB of safetensors, 1 GB of config and a pickle to ignore."""
    files = {"model.safetensors": 2 * 10**9, "config.json": 10**9, "model.bin": 10**12}
    siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in files.items()]
    info = SimpleNamespace(sha=COMMIT, siblings=siblings)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(repository, "HfApi", lambda: Mock(model_info=Mock(return_value=info)))
    download = Mock(return_value="/snapshot")
    monkeypatch.setattr(repository, "snapshot_download", download)
    return download


def set_free(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    usage = SimpleNamespace(free=int(free))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


def test_a_disk_without_room_is_noticed_before_the_download(
    hub_of_3_gb: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free(monkeypatch, 2.5e9)
    with pytest.raises(HubError, match=r"needs 3\.0 GB, .* has 2\.5 GB left.*HF_HOME"):
        repository.fetch(REPOSITORY, None)
    hub_of_3_gb.assert_not_called()


def test_a_cached_repository_needs_no_disk_space(
    hub_of_3_gb: Mock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_free(monkeypatch, 1.5e9)
    fill_cache(tmp_path / "hub", {"model.safetensors": ""})
    assert repository.fetch(REPOSITORY, None) == Path("/snapshot")


def test_a_local_folder_costs_no_import_of_the_hub(tmp_path: Path) -> None:
    code = "import sys; from tinyllm_qwen.checkpoint.hub import resolve; resolve('.'); " + (
        "sys.exit('huggingface_hub' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
