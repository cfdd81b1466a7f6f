"""Members of the workspace can be released together: versions, bounds, licenses, commands."""

import os
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MEMBERS = sorted([*ROOT.glob("packages/*"), *ROOT.glob("apps/*")])
REQUIREMENT = re.compile(r"([a-z-]+)(?:\[([a-z,]+)\])?(.*?)(?:;.*)?")


def project(folder: Path) -> dict[str, Any]:
    """Return the table `project` of a folder's pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


VERSION = project(ROOT)["version"]
NAMES = {project(member)["name"] for member in MEMBERS}


def requirements(table: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the names and the bounds of all dependencies, with those of extras."""
    extras = table.get("optional-dependencies", {}).values()
    every = [*table["dependencies"], *(each for extra in extras for each in extra)]
    found = [REQUIREMENT.fullmatch(each) for each in every]
    return [(match[1], match[3]) for match in found if match]


@pytest.mark.parametrize("member", [ROOT, *MEMBERS], ids=lambda member: member.name)
def test_members_have_one_version_and_one_license(member: Path) -> None:
    table = project(member)
    assert table["version"] == VERSION
    assert table["license"] == "Apache-2.0"
    assert table["license-files"] == ["LICENSE"]
    assert table["authors"] == [{"name": "the tinyllm authors"}]
    assert (member / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_members_need_each_other_in_the_same_version(member: Path) -> None:
    for name, bounds in requirements(project(member)):
        if name in NAMES:
            assert bounds == f"=={VERSION}", name


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_no_member_forces_a_build_of_mlx(member: Path) -> None:
    """Packages of MLX's builds for CPUs and GPUs have files of the same names."""
    table = project(member)
    assert not [each for each in table["dependencies"] if re.match(r"mlx(\[|-)", each)]
    if "mlx" in {name for name, _ in requirements(table)} and member.name != "metalhost":
        assert {"cpu", "cuda"} <= set(table["optional-dependencies"])


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_wheel_has_no_command_but_tinyllm(member: Path) -> None:
    scripts = project(member).get("scripts", {})
    assert set(scripts) == ({"tinyllm"} if member.name == "cli" else set())


def test_the_kernels_are_built_and_run_with_one_version_of_mlx() -> None:
    kernels = ROOT / "packages" / "tinyllm-kernels"
    build = tomllib.loads((kernels / "pyproject.toml").read_text())["build-system"]["requires"]
    (runtime,) = [bounds for name, bounds in requirements(project(kernels)) if name == "mlx"]
    assert re.fullmatch(r"==\d+\.\d+\.\d+", runtime)
    assert f"mlx{runtime}" in build
    assert any(each.startswith(f"mlx-cpu{runtime};") for each in build)


def test_the_changelog_has_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(VERSION)}( |$)", changelog, re.MULTILINE)


def test_a_clone_has_all_commands() -> None:
    commands = ["bench", "chat", "convert", "serve", "tinyllm"]
    for command in commands:  # tests/test_docs_commands.py runs them
        assert (Path(sys.executable).parent / command).is_file()


@pytest.fixture
def workspace() -> ModuleType:
    """The plugin of pytest that asks uv for the dependencies of the tests."""
    import tinyllm_workspace  # has no effect here, because the dependencies are installed

    return tinyllm_workspace


def test_pytest_asks_uv_for_what_a_clone_lacks(
    workspace: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    monkeypatch.setenv("UV", "/bin/uv")
    wanted = ["/bin/uv", "run", "--project", str(ROOT), "--group", "dev", "pytest", "-q", "tests"]
    assert workspace.command(["-q", "tests"]) == wanted
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    assert workspace.command([]) is None


def test_pytest_goes_on_if_nothing_is_missing(
    workspace: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert workspace.command([]) is None


def test_pytest_is_started_again_once(
    workspace: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(workspace, "command", lambda arguments: ["uv", "run", *arguments])
    monkeypatch.setattr(workspace, "find_spec", lambda name: None)
    monkeypatch.setattr(os, "execv", lambda file, arguments: started.append(arguments))
    monkeypatch.setattr(sys, "argv", ["pytest", "-q"])
    monkeypatch.setenv(workspace.RESTARTED, "")
    workspace.restart()
    assert started == [["uv", "run", "-q"]]
    assert "installing the group dev" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"has not installed beartype, .*: unset UV_NO_SYNC"):
        workspace.restart()
    assert len(started) == 1


def test_the_release_pins_actions_and_grants_little() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    actions = re.findall(r"uses: (\S+)", workflow)
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
    assert "\npermissions: {}\n" in workflow
    granted = re.findall(r"permissions: \{ (.*) \}", workflow)
    assert sorted(granted) == ["contents: read"] * 3 + ["id-token: write"]
