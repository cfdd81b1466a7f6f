"""The same random weights in tinyllm and in mlx-lm: the same logits, the same greedy tokens.

tools/parity.py does the computing, for docs/parity.md too; here are the bars that it must reach.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

LOGITS = 1e-4  # relative to the largest logit, float32
TOOL = Path(__file__).parents[1] / "tools" / "parity.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parity", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity"] = module
    spec.loader.exec_module(module)
    return module


PARITY = load_tool()


@pytest.mark.parametrize("form", PARITY.FORMATS)
@pytest.mark.parametrize("family", PARITY.FAMILIES)
def test_logits_and_greedy_tokens_are_those_of_mlx_lm(family: str, form: str) -> None:
    for row in PARITY.against_mlx_lm(family, form):
        assert row.logits < LOGITS, row
        assert row.greedy == PARITY.STEPS, row
