"""Fixtures for the tests: a usable compiler, and kernels that evaluate expressions."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from metalhost import CompilerError, Settings, compiler, metal_kernel, using
from numpy.typing import NDArray

Evaluate = Callable[..., NDArray[np.generic]]


@pytest.fixture(scope="session")
def host() -> None:
    """Skip the test without a usable compiler. Tests that run no kernel do not need one."""
    try:
        compiler()
    except CompilerError as error:
        pytest.skip(str(error))


@pytest.fixture
def evaluate(host: None) -> Evaluate:
    """Return a function that evaluates expressions of the thread index `i` in a checked kernel.

    The result has a row for each thread and a column for each expression.
    """

    def run(
        expressions: Sequence[str],
        dtype: object = np.float32,
        *,
        threads: int = 32,
        setup: str = "",
        header: str = "",
        settings: Settings | None = None,
        **inputs: NDArray[np.generic],
    ) -> NDArray[np.generic]:
        columns = len(expressions)
        lines = [
            "const uint i = thread_position_in_grid.x;",
            setup,
            *(
                f"y[i * {columns} + {k}] = {expression};"
                for k, expression in enumerate(expressions)
            ),
        ]
        kernel = metal_kernel("evaluate", list(inputs), ["y"], "\n".join(lines), header)
        with using(settings or Settings()):
            (y,) = kernel(
                inputs=list(inputs.values()),
                output_shapes=[(threads, columns)],
                output_dtypes=[dtype],
                grid=(threads, 1, 1),
                threadgroup=(min(threads, 1024), 1, 1),
            )
        assert isinstance(y, np.ndarray)
        return y

    return run
