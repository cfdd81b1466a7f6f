"""Cases of an exercise: arguments, the expected result, and a hint for a wrong result."""

from collections.abc import Callable, Mapping, Sequence
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
        arguments: the arguments of the call by name, in their order. The first is an array.
        expected: the result in float64, by the oracle.
        hint: the likely reason for a wrong result.
    """

    name: str
    arguments: Mapping[str, object]
    expected: NDArray[np.float64]
    hint: str


def check_arrays(
    exercise: str, solution: Callable[..., mx.array], cases: Sequence[ArrayCase]
) -> str:
    """Compare each result with the oracle, at the tolerance of the dtype of the first argument.

    The solution gets copies of the arguments, and must leave them as they are: `x *= ...` changes
    the array of the caller, even its dtype.

    Args:
        exercise: the name of the exercise.
        solution: the reader's function.
        cases: the calls.

    Returns:
        A line that says that all cases pass.

    Raises:
        ExerciseError: if a result differs in type, shape, dtype or numbers, or if an argument was
            changed.
    """
    for case in cases:
        copies = {name: _copy(argument) for name, argument in case.arguments.items()}
        result = call(case.name, solution, list(copies.values()))
        for name, argument in case.arguments.items():
            if not _equal(copies[name], argument):
                found = f"your function changed its argument {name}"
                raise failure(exercise, case.name, found, _in_place(name, argument))
        if not isinstance(result, mx.array):
            found = f"expected an mx.array, got {kind(result)}"
            raise failure(exercise, case.name, found, "return the result, as an mx.array")
        if tuple(result.shape) != case.expected.shape:
            found = f"expected shape {case.expected.shape}, got {tuple(result.shape)}"
            raise failure(exercise, case.name, found, "print the shape after each line")
        first = next(iter(case.arguments.values()))
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


def _copy(argument: object) -> object:
    """Copy an array or a list, so that the solution cannot change the case."""
    if isinstance(argument, mx.array):
        return argument[...]
    return list(argument) if isinstance(argument, list) else argument


def _equal(copy: object, argument: object) -> bool:
    """Return True if the solution left a copy as it was."""
    if isinstance(copy, mx.array) and isinstance(argument, mx.array):
        same = copy.dtype == argument.dtype
        return same and bool(mx.array_equal(copy, argument, equal_nan=True))
    return copy == argument


def _in_place(name: str, argument: object) -> str:
    """Return the hint for an argument that the solution changed."""
    if isinstance(argument, mx.array):
        return (
            f"`{name} *= ...` and `{name}[...] = ...` write into the caller's array: "
            f"write `{name} = {name} * ...`"
        )
    return f"change a copy: list({name})"


def call(name: str, solution: Callable[..., object], arguments: Sequence[object]) -> object:
    """Call the reader's function. An exception of it gets a note with the name of the case.

    Ctrl-C gets the note too: the reader wants to know which case does not end.
    """
    try:
        return solution(*arguments)
    except BaseException as error:
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
