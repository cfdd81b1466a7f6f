"""Training: from dialogues to weights, seeded, resumable, within a budget of tokens and minutes."""

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import dialogue
import network
import torch
from batches import Batch, bucketed
from corpus import Entry, Question, fingerprint, normal
from optimizer import Optimizer
from recall import correct, encode
from rich.console import Console
from schedule import Schedule, quantized, rate
from tokens import ChatTokens
from transformers import Qwen3ForCausalLM

SAVE_EVERY = 180.0  # seconds
LOG_EVERY = 20  # steps
TEST_EVERY = 300  # steps
TESTED = 300  # held-out phrasings


@dataclass(frozen=True)
class Recipe:
    """How to train. A state on disk is resumed by the same recipe alone; budgets may change."""

    seed: int = 0
    batch_tokens: int = 4096
    optimizer: str = "muon"
    rate: float | None = None
    bfloat16: bool = True


@dataclass
class Position:
    """Where a run is: the epoch and the batch in it, and what was spent so far."""

    epoch: int = 0
    index: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Run:
    """One training run in the folder `work`: `state.pt` to resume from, `log.jsonl` with a line every few steps."""

    def __init__(
        self,
        entries: list[Entry],
        held: list[Question],
        tokens: ChatTokens,
        recipe: Recipe,
        schedule: Schedule,
        work: Path,
    ) -> None:
        self.entries, self.tokens, self.recipe, self.schedule, self.work = (
            entries,
            tokens,
            recipe,
            schedule,
            work,
        )
        self.held_forms = {normal(question.ask) for question in held}
        sample = random.Random(recipe.seed).sample(held, min(TESTED, len(held)))
        self.held = [encode(question, tokens) for question in sample]
        self.model = network.build(tokens.size, tokens.end, tokens.pad, recipe.seed)
        self.optimizer = Optimizer(
            dict(self.model.model.named_parameters()),
            recipe.optimizer,
            network.EMBEDDING,
            recipe.rate,
        )
        self.position = Position()
        self.console = Console()
        self._resume()

    def train(self) -> Qwen3ForCausalLM:
        """Trains to the end of the budget and gives the model, in float32 and not quantized."""
        position, started, saved = (
            self.position,
            time.monotonic() - self.position.seconds,
            time.monotonic(),
        )
        recent: list[float] = []
        mark = (time.monotonic(), position.tokens)
        for batch in self._batches():
            progress = self.schedule.progress(position.tokens, position.seconds)
            if progress >= 1.0:
                break
            weights = network.parameters(self.model, quantized(progress))
            loss = network.loss(self.model, weights, batch, self.recipe.bfloat16)
            loss.backward()
            norm = self.optimizer.step(rate(progress))
            recent.append(loss.item())
            position.step += 1
            position.index += 1
            position.tokens += batch.tokens
            position.seconds = time.monotonic() - started
            if position.step % LOG_EVERY == 0:
                speed = (position.tokens - mark[1]) / (time.monotonic() - mark[0])
                self._log(progress, sum(recent) / len(recent), norm, speed)
                recent, mark = [], (time.monotonic(), position.tokens)
            if time.monotonic() - saved > SAVE_EVERY:
                self._save()
                saved = time.monotonic()
        self._save()
        return self.model

    def _batches(self) -> Iterator[Batch]:
        """The batches from the position on, for ever."""
        while True:
            dialogues = dialogue.epoch(
                self.entries, self.held_forms, self.recipe.seed, self.position.epoch
            )
            rows = [self.tokens.encode(d) for d in dialogues]
            rng = random.Random(f"{self.recipe.seed} batches {self.position.epoch}")
            yield from bucketed(rows, self.tokens.pad, self.recipe.batch_tokens, rng)[
                self.position.index :
            ]
            self.position.epoch += 1
            self.position.index = 0

    def _log(self, progress: float, loss: float, norm: float, speed: float) -> None:
        position = self.position
        line: dict[str, float | int | bool] = {
            **asdict(position), "progress": progress, "loss": loss, "norm": norm, "tokens_per_second": speed,
            "quantized": quantized(progress),
        }  # fmt: skip
        if position.step % TEST_EVERY == 0:
            weights = network.parameters(self.model, quantized(progress))
            line["recall"] = sum(correct(self.model, weights, self.held, self.tokens.pad)) / len(
                self.held
            )
        with (self.work / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        left = position.seconds / max(progress, 1e-6) * (1 - progress) / 60
        recall = f"  recall {line['recall']:.1%}" if "recall" in line else ""
        self.console.print(
            f"{progress:6.1%}  step {position.step}  epoch {position.epoch}  {position.tokens / 1e6:.2f} M tokens  "
            f"loss {loss:.4f}  {speed:,.0f} tokens/s  {left:.0f} min left{recall}",
            highlight=False,
            soft_wrap=True,
        )

    def _identity(self) -> dict:
        return {"recipe": asdict(self.recipe), "corpus": fingerprint(self.entries)}

    def _save(self) -> None:
        """Writes the state beside the old one and then over it, so that an interrupted write loses nothing."""
        state = {
            "identity": self._identity(), "position": asdict(self.position), "model": self.model.state_dict(),
            "optimizer": self.optimizer.state(), "random": torch.get_rng_state(),
        }  # fmt: skip
        torch.save(state, self.work / "state.tmp")
        os.replace(self.work / "state.tmp", self.work / "state.pt")

    def _resume(self) -> None:
        path = self.work / "state.pt"
        if not path.exists():
            (self.work / "log.jsonl").write_text("")
            return
        state = torch.load(path, weights_only=True)
        if state["identity"] != self._identity():
            raise ValueError(
                f"{path} belongs to another run: expected {self._identity()}, found {state['identity']}. "
                "Give another --work, or remove the folder to begin anew"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.restore(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.position = Position(**state["position"])
        # Steps after the last save are taken again, and logged again.
        log = self.work / "log.jsonl"
        kept = [
            line
            for line in log.read_text().splitlines()
            if json.loads(line)["step"] <= self.position.step
        ]
        log.write_text("".join(line + "\n" for line in kept))
        self.console.print(
            f"resumed at step {self.position.step}, {self.position.tokens / 1e6:.2f} M tokens"
        )
