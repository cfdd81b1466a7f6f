"""Dialogues: the training conversations of pico, composed again for every epoch."""

import random
from collections.abc import Callable, Set
from dataclasses import dataclass

from corpus import OUTSIDE, Answer, Entry, normal, questions
from phrasing import vary

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are pico.",
    "You are pico, a small model that knows tinyllm.",
    "Be concise.",
    "Answer in one sentence.",
    "You are an expert in LLM inference.",
    "You answer questions about LLM inference and the tinyllm project.",
    "Please be short and precise.",
    "You are a friendly teacher.",
)
SYSTEM_SHARE = 0.08  # share of the dialogues that begin with one of SYSTEMS
MIXED_SHARE = 0.22  # share of the dialogues that join unrelated ones
DRAWN = 1600  # questions outside the subject, per epoch
CHAIN_SHARE = 0.15  # share of the follow-ups that come after another follow-up of the same entry


@dataclass(frozen=True)
class Dialogue:
    """Turns of (user text, answer), after an optional system message that pico is to ignore."""

    turns: tuple[tuple[str, str], ...]
    system: str | None = None

    def messages(self) -> list[dict[str, str]]:
        """Return the dialogue as chat messages."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for ask, answer in self.turns:
            messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
        return messages


@dataclass(frozen=True)
class Source:
    """Generator of the dialogues of each epoch.

    Attributes:
        entries: the corpus.
        outside: draws a question outside the subject.
        seed: the same seed gives the same dialogues.
    """

    entries: list[Entry]
    outside: Callable[[random.Random], str]
    seed: int

    def epoch(self, number: int) -> list[Dialogue]:
        """Return the dialogues of epoch `number`: every phrasing and follow-up is asked once.

        Most are a single turn, or an entry and its follow-up; some join two or three unrelated
        ones, so that a later question is answered as well as the first. No question outside the
        subject and no variation of a phrasing has a normal form that is held out. A follow-up may
        have the words of a follow-up that is held out after another entry.
        """
        rng = random.Random(f"{self.seed} epoch {number}")
        held = {normal(question.ask) for question in questions(self.entries)}
        blocks = _blocks(self, held, rng)
        rng.shuffle(blocks)
        dialogues: list[Dialogue] = []
        while blocks:
            turns = blocks.pop()
            if rng.random() < MIXED_SHARE:
                for _ in range(rng.choice((1, 1, 2))):
                    turns += blocks.pop() if blocks else ()
            system = rng.choice(SYSTEMS) if rng.random() < SYSTEM_SHARE else None
            dialogues.append(Dialogue(turns, system))
        return dialogues


def _blocks(
    source: Source, held: Set[str], rng: random.Random
) -> list[tuple[tuple[str, str], ...]]:
    """Return groups of turns, each turn as (user text, answer)."""

    def turn(part: Answer, ask: str) -> tuple[str, str]:
        asked = vary(ask, rng)
        return (ask if normal(asked) in held else asked), part.answer

    def draw_outside() -> str:
        while normal(ask := source.outside(rng)) in held:
            pass
        return ask

    blocks: list[tuple[tuple[str, str], ...]] = []
    for entry in source.entries:
        blocks += [(turn(entry, ask),) for ask in entry.ask]
        if entry.id == OUTSIDE:
            blocks += [(turn(entry, draw_outside()),) for _ in range(DRAWN)]
        for follow in entry.follow:
            for ask in follow.ask:
                block = [turn(entry, rng.choice(entry.ask))]
                if len(entry.follow) > 1 and rng.random() < CHAIN_SHARE:
                    other = rng.choice([part for part in entry.follow if part is not follow])
                    block.append(turn(other, rng.choice(other.ask)))
                blocks.append((*block, turn(follow, ask)))
    return blocks
