"""Checks of the exercises in docs/learn: one function for each chapter.

A check calls the reader's function on cases with known answers. It returns a line with the number
of cases, or raises `ExerciseError` with the first case that fails and a hint.

    print(check_attention(attention))
"""

from tinyllm_ops.testing.exercises.arrays import (
    check_attention,
    check_grouped_attention,
    check_paged_attention,
    check_rms_norm,
    check_softmax_rows,
)
from tinyllm_ops.testing.exercises.case import ExerciseError
from tinyllm_ops.testing.exercises.codes import check_quantize_group
from tinyllm_ops.testing.exercises.tokens import check_accept, check_top_p

__all__ = [
    "ExerciseError",
    "check_accept",
    "check_attention",
    "check_grouped_attention",
    "check_paged_attention",
    "check_quantize_group",
    "check_rms_norm",
    "check_softmax_rows",
    "check_top_p",
]
