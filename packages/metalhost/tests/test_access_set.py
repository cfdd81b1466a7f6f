"""What the race detector remembers is enough: checked on all short programs, in C++."""

import re
import subprocess
from pathlib import Path

from metalhost import compiler
from metalhost.launch import emulated
from metalhost.program import NATIVE

SOURCE = Path(__file__).parent / "native" / "access_set.cpp"


def test_it_agrees_with_the_definition_on_every_short_program(tmp_path: Path, host: None) -> None:
    check = tmp_path / "check"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-I", str(NATIVE / "runtime")]
    assert compiler().run([*flags, str(SOURCE), "-o", str(check)]) == ""
    done = subprocess.run(emulated(check), capture_output=True, text=True, check=False)
    found = re.fullmatch(r"(\d+) of (\d+) programs race\n", done.stdout)
    assert found, done.stdout
    races, programs = map(int, found.groups())
    assert programs == (5 * 3 * 3) ** 4
    assert programs / 10 < races < programs
