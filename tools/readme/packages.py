"""The diagram of the packages in README.md, with the dependencies that pyproject.toml names."""

import re
import tomllib
from pathlib import Path

from learn.svg import Drawing

PACKAGES = Path(__file__).parents[2] / "packages"

_WIDTH, _HEIGHT = 126, 46
_APPS = "apps"
_PLACES: dict[str, tuple[float, float, str, str]] = {  # the middle of each box
    "tinyllm-ops": (80, 292, "functions on arrays", "blue"),
    "tinyllm-layers": (80, 212, "layers, KV caches", "blue"),
    "tinyllm-qwen": (80, 132, "checkpoint to text", "blue"),
    "tinyllm-engine": (80, 52, "many requests", "blue"),
    "tinyllm-kernels": (230, 132, "CPU and Metal", "green"),
    "metalhost": (365, 212, "Metal on a CPU", "amber"),
    _APPS: (230, 52, "chat serve convert", "plain"),
}


def dependencies() -> dict[str, set[str]]:
    """Return the packages that each package needs, without those that these need themselves."""
    needs: dict[str, set[str]] = {}
    for file in sorted(PACKAGES.glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        names = {re.split(r"[^\w-]", each)[0] for each in project["dependencies"]}
        needs[project["name"]] = {name for name in names if (PACKAGES / name).is_dir()}
    return {
        name: {each for each in direct if not any(each in needs[other] for other in direct)}
        for name, direct in needs.items()
    }


def packages_picture() -> str:
    """Return boxes with arrows from a package to those that it needs.

    Raises:
        KeyError: if a package has no place.
    """
    drawing = Drawing(334, "The packages of tinyllm", "An arrow leads to the package it needs.")
    needs = {**dependencies(), _APPS: {"tinyllm-engine", "tinyllm-kernels"}}
    for name, needed in needs.items():
        for other in sorted(needed):
            (x, y, *_), (to_x, to_y, *_) = _PLACES[name], _PLACES[other]
            if x == to_x:
                points = [(x, y + _HEIGHT / 2), (to_x, to_y - _HEIGHT / 2)]
            elif y == to_y:
                points = [(x - _WIDTH / 2, y), (to_x + _WIDTH / 2, to_y)]
            else:
                points = [(x, y + _HEIGHT / 2), (x, to_y), (to_x + _WIDTH / 2, to_y)]
            drawing.line(points, tip=True)
    for name in needs:
        x, y, content, kind = _PLACES[name]
        drawing.rect(x - _WIDTH / 2, y - _HEIGHT / 2, _WIDTH, _HEIGHT, kind)
        drawing.text(x, y - 3, name, "ink bold")
        drawing.text(x, y + 14, content, "small soft")
    drawing.text(302, 296, "an arrow leads to what a package needs", "small soft")
    return drawing.svg()
