"""docs/security.md has each attack of tests/attack, with its budget."""

from pathlib import Path

from attack.test_fairness import LOADS, TARGET
from attack.test_requests import ATTACKS
from attack.victim import Budget

PAGE = Path(__file__).parents[1] / "docs" / "security.md"


def rows() -> dict[str, str]:
    """Return the rows of the table of attacks, by name."""
    text = PAGE.read_text(encoding="utf-8").split("## Attacks")[1]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


def test_the_page_has_every_attack_with_its_budget() -> None:
    budgets: dict[str, Budget] = {name: attack.budget for name, attack in ATTACKS.items()}
    budgets |= {f"one key, {name}": TARGET for name in LOADS}
    found = rows()
    for name, budget in budgets.items():
        for limit in (budget.stall, budget.gap, budget.first_token, budget.memory):
            assert f"({limit:g})" in found[name], name
