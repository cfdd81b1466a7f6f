"""Graders of the exercises in docs/learn: one function for each chapter.

A grader calls the reader's function on cases with known answers. It returns a line with the number
of cases, or raises `ExerciseError` with the first case that fails and a hint.

    print(grade_attention(attention))
"""

from tinyllm_ops.testing.exercises.arrays import (
    grade_attention,
    grade_grouped_attention,
    grade_paged_attention,
    grade_rms_norm,
    grade_softmax_rows,
)
from tinyllm_ops.testing.exercises.case import ExerciseError
from tinyllm_ops.testing.exercises.codes import grade_quantize_group
from tinyllm_ops.testing.exercises.tokens import grade_accept, grade_top_p

__all__ = [
    "ExerciseError",
    "grade_accept",
    "grade_attention",
    "grade_grouped_attention",
    "grade_paged_attention",
    "grade_quantize_group",
    "grade_rms_norm",
    "grade_softmax_rows",
    "grade_top_p",
]
