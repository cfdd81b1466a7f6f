import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_of_the_readme_prints_what_it_says() -> None:
    example, output = re.findall(
        r"```python\n(.*?)```\s+prints\s+```text\n(.*?)```", README.read_text(), re.DOTALL
    )[0]
    ran = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True
    )
    assert ran.stdout == output
