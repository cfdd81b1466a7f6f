"""Irregular files: folders, pipes, sockets, devices, links, and unreadable files.

A reader must not wait for any of these files. If one does, an alarm fails the test.
"""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.config.generation import GenerationConfig
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.loader import load
from tinyllm_qwen.text.tokenizer import Tokenizer

MakeCheckpoint = Callable[..., Any]
PICO = Path(__file__).parents[2] / "src" / "tinyllm_qwen" / "pico"

READERS: dict[str, Callable[[Path], object]] = {
    "config.json": QwenConfig.from_folder,
    "generation_config.json": GenerationConfig.from_folder,
    "tokenizer.json": Tokenizer.from_folder,
    "tokenizer_config.json": Tokenizer.from_folder,
    "chat_template.jinja": Tokenizer.from_folder,
    "chat_template.json": Tokenizer.from_folder,
    "model.safetensors": load,
    "model.safetensors.index.json": load,
}
each_file = pytest.mark.parametrize("name", READERS)


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    def too_long(signal_number: int, frame: FrameType | None) -> None:
        raise TimeoutError("a reader waits")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PICO, tmp_path / "m"))


def vacate(folder: Path, name: str) -> Path:
    """Remove the file `name`, and return its path.

    For the index, the single file of weights is removed too, because it is read before the index.
    """
    (folder / name).unlink(missing_ok=True)
    if name == "model.safetensors.index.json":
        (folder / "model.safetensors").unlink()
    return folder / name


@each_file
def test_a_folder_in_the_place_of_a_file_is_refused(folder: Path, name: str) -> None:
    vacate(folder, name).mkdir()
    with pytest.raises(CheckpointError, match=rf"{name}: expected a file, found a folder"):
        READERS[name](folder)


@each_file
def test_a_named_pipe_is_refused_without_waiting_for_its_writer(folder: Path, name: str) -> None:
    os.mkfifo(vacate(folder, name))
    with pytest.raises(CheckpointError, match=rf"{name}: expected a file, found a named pipe"):
        READERS[name](folder)


def test_a_named_pipe_among_the_shards_is_refused(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill().save(shards=2)
    os.mkfifo(vacate(made.folder, "model-00001-of-00002.safetensors"))
    with pytest.raises(CheckpointError, match="found a named pipe"):
        load_weights(made.folder, made.config)


@each_file
def test_a_socket_is_refused(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vacate(folder, name)
    monkeypatch.chdir(folder)  # a socket's path may have a hundred characters at most
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        with pytest.raises(CheckpointError, match=rf"{name}: expected a file, found a socket"):
            READERS[name](folder)


@each_file
def test_a_device_that_never_ends_is_refused(folder: Path, name: str) -> None:
    vacate(folder, name).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=rf"{name}: expected a file, found a device"):
        READERS[name](folder)


@each_file
def test_a_link_to_nowhere_is_an_error_even_where_the_file_is_optional(
    folder: Path, name: str
) -> None:
    vacate(folder, name).symlink_to(folder / "absent")
    with pytest.raises(CheckpointError, match=rf"{name} leads nowhere"):
        READERS[name](folder)


@each_file
def test_links_that_go_in_a_circle_are_an_error(folder: Path, name: str) -> None:
    vacate(folder, name).symlink_to(folder / "other")
    (folder / "other").symlink_to(folder / name)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read: .*symbolic links"):
        READERS[name](folder)


def test_links_out_of_the_folder_are_followed_as_in_the_cache_of_the_hub(
    folder: Path, tmp_path: Path
) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in list(folder.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    model, _ = load(folder)
    assert model.config == QwenConfig.from_folder(PICO)


@pytest.fixture
def _unprivileged(tmp_path: Path) -> None:
    """Skip the test if this user may read every file, as root may; see docs/hostile-files.md."""
    secret = tmp_path / "secret"
    secret.touch(mode=0)
    if os.access(secret, os.R_OK):
        pytest.skip("this user may read everything")


@each_file
@pytest.mark.usefixtures("_unprivileged")
def test_a_file_that_may_not_be_read_is_an_error(folder: Path, name: str) -> None:
    path = vacate(folder, name)
    path.write_bytes(b"{}")
    path.chmod(0)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read: Permission denied"):
        READERS[name](folder)


@each_file
@pytest.mark.usefixtures("_unprivileged")
def test_a_folder_that_may_not_be_entered_is_an_error(folder: Path, name: str) -> None:
    folder.chmod(0o600)
    try:
        with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
            READERS[name](folder)
    finally:
        folder.chmod(0o700)
