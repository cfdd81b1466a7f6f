"""Cases of an exercise: arguments, the expected result, and a hint for a wrong result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinyllm_ops.testing.tolerance import assert_close


class ExerciseError(AssertionError):
    """A solution gives a wrong result. The message names the case and has a hint."""


@dataclass(frozen=True)
class ArrayCase:
    """A call whose result is an array.

    Attributes:
        name: the case in a few words.
        arguments: the arguments of the call.
        expected: the result in float64, by the oracle.
        hint: the likely reason for a wrong result.
    """

    name: str
    arguments: tuple[object, ...]
    expected: NDArray[np.float64]
    hint: str


def check_arrays(
    exercise: str, solution: Callable[..., mx.array], cases: Sequence[ArrayCase]
) -> str:
    """Compare each result with the oracle, at the tolerance of the dtype of the first argument.

    Args:
        exercise: the name of the exercise.
        solution: the reader's function.
        cases: the calls.

    Returns:
        A line that says that all cases pass.

    Raises:
        ExerciseError: if a result differs in type, shape, dtype or numbers.
    """
    for case in cases:
        result = call(case.name, solution, case.arguments)
        if not isinstance(result, mx.array):
            found = f"expected an mx.array, got {kind(result)}"
            raise failure(exercise, case.name, found, "return the result, as an mx.array")
        if tuple(result.shape) != case.expected.shape:
            found = f"expected shape {case.expected.shape}, got {tuple(result.shape)}"
            raise failure(exercise, case.name, found, "print the shape after each line")
        first = case.arguments[0]
        assert isinstance(first, mx.array)
        if result.dtype != first.dtype:
            hint = "cast the result to the dtype of the first argument"
            found = f"expected dtype {first.dtype}, got {result.dtype}"
            raise failure(exercise, case.name, found, hint)
        try:
            assert_close(result, case.expected)
        except AssertionError as error:
            found = str(error).replace("; at", "\nat")
            raise failure(exercise, case.name, found, case.hint) from None
    return passed(exercise, len(cases))


def call(name: str, solution: Callable[..., object], arguments: Sequence[object]) -> object:
    """Call the reader's function. An exception of it gets a note with the name of the case."""
    try:
        return solution(*arguments)
    except Exception as error:
        error.add_note(f"raised by your function in the case: {name}")
        raise


def kind(result: object) -> str:
    """Return None or the name of a result's type, for the message about a wrong type."""
    return "None" if result is None else type(result).__name__


def failure(exercise: str, name: str, found: str, hint: str) -> ExerciseError:
    """Return the error of a case."""
    return ExerciseError(f"{exercise}: {name}\n{found}\nhint: {hint}")


def passed(exercise: str, cases: int) -> str:
    """Return the line for a solution that passes."""
    return f"{exercise}: all {cases} cases pass"
