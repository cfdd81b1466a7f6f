"""Tools for tests of the engine: random schedules, and a scheduler without a model."""

from tinyllm_engine.testing.faults import with_fault
from tinyllm_engine.testing.known_answers import KnownAnswers
from tinyllm_engine.testing.scheduler_memory import PAGE, SchedulerMemory, state_without_model
from tinyllm_engine.testing.schedules import (
    DRAWN,
    GREEDY,
    PENALIZED,
    Oracle,
    Tally,
    pages_of,
    run_schedule,
    sample_prompts,
)

__all__ = [
    "DRAWN",
    "GREEDY",
    "PAGE",
    "PENALIZED",
    "KnownAnswers",
    "Oracle",
    "SchedulerMemory",
    "Tally",
    "pages_of",
    "run_schedule",
    "sample_prompts",
    "state_without_model",
    "with_fault",
]
