"""Everything that a run found out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.machine import Machine
from tinyllm_bench.result import Result
from tinyllm_bench.settings import Settings
from tinyllm_bench.subject import Subject

FORMAT = "tinyllm-bench/1"


@dataclass
class Report:
    """Filled while the run goes on, so that an interrupted one has something to show.

    Attributes:
        settings: what was asked for.
        machine: where.
        version: of this program.
        name: of the model.
        form: how its weights are stored.
        model_bytes: of all its weights.
        ceilings: of the machine, the better of before and after; None until they are measured.
        results: rows, in the order of measurement.
        notices: what a reader should know.
        interrupted: whether the run was ended early.
    """

    settings: Settings
    machine: Machine
    version: str
    name: str
    form: str
    model_bytes: int
    ceilings: Ceilings | None = None
    results: list[Result] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    interrupted: bool = False

    @classmethod
    def begin(
        cls, settings: Settings, machine: Machine, version: str, subject: Subject
    ) -> "Report":
        """An empty one."""
        return cls(settings, machine, version, subject.name, str(subject.form), subject.nbytes)

    def of(self, wanted: Callable[[Result], bool]) -> list[Result]:
        """The rows that are wanted."""
        return [result for result in self.results if wanted(result)]
