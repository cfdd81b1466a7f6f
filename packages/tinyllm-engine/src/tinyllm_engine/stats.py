"""Counts of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """How an engine stands, and what it has done since it was made.

    Attributes:
        running: requests that hold pages.
        waiting: requests that wait for them.
        pages_total: pages in all.
        pages_used: pages that requests hold.
        pages_kept: pages that nobody holds, kept for requests that begin alike.
        prompt_tokens: tokens of all prompts.
        cached_tokens: how many of them the prefix cache had.
        generated_tokens: tokens chosen.
        preemptions: how often a request had to give its pages back and compute them again.
        drafted_tokens: tokens guessed.
        accepted_tokens: guesses that were right.
    """

    running: int
    waiting: int
    pages_total: int
    pages_used: int
    pages_kept: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    drafted_tokens: int
    accepted_tokens: int
