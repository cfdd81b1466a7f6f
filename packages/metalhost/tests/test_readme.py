"""The example in the README prints the output shown in the README."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_prints_the_output_shown(host: None) -> None:
    text = README.read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    output = re.findall(r"```text\n(.*?)```", text, re.DOTALL)[0]
    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True
    )
    assert result.stdout == output
