"""Builds every member's wheel, installs each alone into an empty environment, runs its example.

    uv run --no-sync python tools/check_wheels.py

The example is the first Python or shell block of the member's README. Other members are installed
from the wheels just built, so that a missing dependency or version bound is found here. A wheel
must contain `py.typed` and the license, and must have its README as its description. Wheels are
built from the source distributions, which must contain the license too.
Kernels are compiled without optimization and for two instruction sets, because only the contents
of wheels are checked here. The texts of the Metal kernels are data in the wheel: all must be there,
and the tests of one are run on the installed wheel.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEMBERS = sorted([*ROOT.glob("packages/*"), *ROOT.glob("apps/*")])
LICENSE = (ROOT / "LICENSE").read_bytes()


def example(readme: Path) -> tuple[str, str]:
    """Return the language and the text of a README's first Python or shell block.

    Raises:
        ValueError: if there is none.
    """
    found = re.search(r"^```(python|sh)\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"{readme}: expected a block that starts with ```python or ```sh")
    return found[1], found[2]


def run(*command: str | Path, cwd: Path | None = None, path: Path | None = None) -> None:
    """Run a command with `path` first in PATH; exit if the command fails."""
    defined = "CMAKE_CXX_FLAGS_RELEASE=-O0;TINYLLM_ISAS=native"
    environ = os.environ | {"SKBUILD_CMAKE_DEFINE": defined}
    if path is not None:
        environ["PATH"] = f"{path}{os.pathsep}{environ['PATH']}"
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environ, check=False)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}")


def inspect(wheel: Path) -> None:
    """Stop if a wheel lacks a file that its users need.

    Raises:
        ValueError: naming what is missing.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        described = "```" in archive.read(metadata).decode()  # every README has an example
        copies = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        licenses = [archive.read(name) for name in copies]
    if licenses != [LICENSE]:
        raise ValueError(f"{wheel.name}: expected the license of the root, found {copies}")
    if not any(name.endswith("/py.typed") for name in names):
        raise ValueError(f"{wheel.name}: expected a file py.typed, found none of {len(names)}")
    (source,) = ROOT.glob(f"*/*/src/{wheel.name.split('-')[0]}")
    for text in source.glob("**/*.metal"):
        name = str(text.relative_to(source.parent))
        if name not in names:
            raise ValueError(f"{wheel.name}: expected a file {name}, found none of {len(names)}")
    if not described:
        raise ValueError(f"{wheel.name}: expected the README in its metadata, found no example")


def inspect_source(archive: Path) -> None:
    """Stop if a source distribution lacks the license.

    Raises:
        ValueError: if it does.
    """
    name = f"{archive.name.removesuffix('.tar.gz')}/LICENSE"
    with tarfile.open(archive) as files:
        found = files.extractfile(name)
        if found is None or found.read() != LICENSE:
            raise ValueError(f"{archive.name}: expected the license of the root as {name}")


def check(member: Path, wheels: Path, scratch: Path) -> None:
    """Install one member into an empty environment and run its example outside the repository."""
    name = f"tinyllm-{member.name}" if member.parent.name == "apps" else member.name
    place = scratch / name
    python = place / "bin" / "python"  # Windows is not supported
    run("uv", "venv", "--quiet", "--python", sys.executable, place)
    chosen = name if name == "metalhost" else f"{name}[cpu]"
    install = ("uv", "pip", "install", "--quiet", "--python", python, "--find-links", wheels)
    run(*install, chosen)
    language, text = example(member / "README.md")
    if name == "tinyllm-engine":  # its example computes with kernels, which it does not depend on
        run(python, "-c", "import tinyllm_engine")
        run(*install, "tinyllm-kernels")
    interpreter = ["sh", "-e"] if language == "sh" else [python]
    run(*interpreter, "-c", text, cwd=scratch, path=python.parent)
    print(f"{name}: installed alone, example ran", flush=True)
    if name == "tinyllm-kernels":
        check_metal(python, wheels, member)


def check_metal(python: Path, wheels: Path, kernels: Path) -> None:
    """Run the tests of a Metal kernel on the installed wheel."""
    needed = ("metalhost", "tinyllm-ops[testing]", "beartype", "hypothesis", "pytest")
    run("uv", "pip", "install", "--quiet", "--python", python, "--find-links", wheels, *needed)
    tests = kernels / "tests" / "metal" / "test_rms_norm.py"
    run(python, "-m", "pytest", "-q", "-m", "not exhaustive", tests, cwd=ROOT)
    print(f"{kernels.name}: a Metal kernel passed its tests from the wheel", flush=True)


def main() -> None:
    """Check all members."""
    if shutil.which("uv") is None:
        sys.exit("uv is not on the PATH: install it with `pip install uv`")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheels = scratch / "wheels"
        for member in MEMBERS:
            run("uv", "build", "--quiet", "--out-dir", wheels, member, cwd=ROOT)
        for wheel in wheels.glob("*.whl"):
            inspect(wheel)
        for archive in wheels.glob("*.tar.gz"):
            inspect_source(archive)
        for member in MEMBERS:
            check(member, wheels, scratch)


if __name__ == "__main__":
    main()
