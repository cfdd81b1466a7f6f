"""Loans: the arrays of caches that a stack keeps between its passes.

A native stack saves the time of making Python and MLX objects of every cache for every token. The
first pass of a loan takes the arrays (`lend` of a cache). A cache takes them back (`_take_back`)
when they are read or changed. docs/kernels/stack.md describes the native side and measures loans.
The stack with loans is `tinyllm_kernels.cpu.layers.loans`.
"""

from typing import Protocol, TypeVar, runtime_checkable

import mlx.core as mx

Stored_co = TypeVar("Stored_co", covariant=True)


@runtime_checkable
class Loan(Protocol[Stored_co]):
    """The arrays of all caches of a stack, which borrows them for more than one pass.

    `LayerStack` asks every cache for its arrays and hands updated arrays back, token after token.
    The stack of a backend may keep the arrays instead, until they are needed outside of the stack.
    A cache takes its arrays back when they are read or changed. This ends the loan of all caches
    and waits for the device.
    """

    def take(self, index: int) -> Stored_co:
        """Return what a cache has lent, with the tokens of all passes.

        The first call ends the loan and waits for the device. Further calls return the same, so
        that a cache takes its arrays again if Ctrl-C came before it had them.

        Args:
            index: the index of the cache.
        """

    def release(self, index: int) -> None:
        """Drop what `take` returned for a cache, which has it now and will write to it."""


@runtime_checkable
class TokenLoan(Loan[list[mx.array]], Protocol):
    """A loan of caches that hold the tokens of whole sequences."""

    def offset(self, index: int) -> int:
        """Return the number of tokens in a cache."""

    def trim(self, index: int, length: int) -> None:
        """Remove all but the first `length` tokens of a cache, without waiting for the device."""
