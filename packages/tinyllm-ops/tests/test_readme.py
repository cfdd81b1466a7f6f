import re
import subprocess
import sys
from pathlib import Path

import pytest
from tinyllm_ops import REFERENCE

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\s+prints\s+```text\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(("example", "output"), EXAMPLES, ids=["ops", "pages", "states"])
def test_the_examples_print_the_output_in_the_readme(example: str, output: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, check=True
    )
    assert ran.stdout == output


def test_every_example_is_run() -> None:
    assert len(EXAMPLES) == README.count("```python") == 3


def test_the_ops_of_an_opset_are_listed() -> None:
    listed = re.findall(
        r"of functions, one implementation of (.*?) The package has", README, re.DOTALL
    )[0]
    assert re.findall(r"`(\w+)`", listed) == [
        name for name in vars(REFERENCE) if name not in ("name", "norm_rope")
    ]
