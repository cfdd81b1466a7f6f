"""The run-time check of signatures, which tests have and users do not have."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def without_checks() -> Iterator[None]:
    """Turn off the check of shapes and types, for tests that call functions very many times."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
