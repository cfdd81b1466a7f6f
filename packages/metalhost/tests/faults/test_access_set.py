"""`AccessSet` agrees with the definition of a race on all short programs, checked in C++."""

import re
import subprocess
from pathlib import Path

from metalhost import compiler
from metalhost.compilation.native_files import RUNTIME
from metalhost.execution.launch import command

SOURCE = Path(__file__).parent / "access_set.cpp"


def test_access_sets_agree_with_the_definition_on_every_short_program(
    tmp_path: Path, host: None
) -> None:
    check = tmp_path / "check"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-I", str(RUNTIME)]
    assert compiler().run([*flags, str(SOURCE), "-o", str(check)]) == ""
    result = subprocess.run(command(check), capture_output=True, text=True, check=False)
    found = re.fullmatch(r"(\d+) of (\d+) programs race\n", result.stdout)
    assert found, result.stdout
    races, programs = map(int, found.groups())
    assert programs == (5 * 4 * 3) ** 4
    assert programs / 10 < races < programs
