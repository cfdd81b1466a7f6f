"""Includes of the runtime go one way: a folder includes only itself and lower folders."""

import re

from metalhost.compilation.native_files import RUNTIME

ORDER = ["fibers", "host", "memory", "threads", "checks"]


def test_folders_of_the_runtime_include_only_lower_folders() -> None:
    folders = sorted(path.name for path in RUNTIME.iterdir() if path.is_dir())
    assert folders == sorted(ORDER)
    for level, folder in enumerate(ORDER):
        for path in (RUNTIME / folder).iterdir():
            included = re.findall(r'#include "(\w+)/', path.read_text())
            assert set(included) <= set(ORDER[: level + 1]), path


def test_the_interface_to_kernels_includes_no_folder() -> None:
    assert not re.findall(r'#include "', (RUNTIME / "abi.h").read_text())
