"""With the same random weights, tinyllm and mlx-lm give the same logits and greedy tokens.

tools/parity.py computes the errors, also for docs/parity-tables.md. This file has the bounds.
"""

import parity
import pytest
from parity_models import FAMILIES, FORMATS, Format

# Bounds on the errors, relative to the largest logit. In 16 bits, activations are rounded about ten
# times per layer, to 11 or 8 bits. Weights are rounded in the same way on both sides.
LOGITS = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 5e-2}


CASES = [
    (family, form)
    for family in FAMILIES
    for form in FORMATS
    # All formats for qwen3, two for each other family. docs/parity-tables.md has all pairs.
    if family == "qwen3" or str(form) in ("not packed", "4-bit, group 64")
]


@pytest.mark.parametrize(("family", "form"), CASES, ids=str)
def test_logits_and_greedy_tokens_are_those_of_mlx_lm(
    family: str, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    # mlx-lm takes 0.1 s per token, so one model runs all steps. docs/parity-tables.md has all steps
    # of all models, and tests of tinyllm-qwen compare 64 steps with those of transformers.
    if (family, str(form)) != ("qwen3", "not packed"):
        monkeypatch.setattr(parity, "STEPS", 12)
    for row in parity.against_mlx_lm(family, form):
        for dtype, error in row.logits.items():
            assert error < LOGITS[dtype], row
        assert row.greedy == parity.STEPS, row
