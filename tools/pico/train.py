"""Training: from dialogues to weights, seeded, resumable, within a budget of tokens and minutes."""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dialogue
import network
import torch
from batches import Batch, bucketed, cut
from corpus import Question, fingerprint
from optimizer import Optimizer, Schedule, quantized, rate
from recall import correct, encode
from rich.console import Console
from tokens import ChatTokens

SAVE_EVERY = 180.0  # seconds
LOG_EVERY = 20  # steps
TEST_EVERY = 300  # steps
TESTED = 300  # held-out phrasings


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a run. A state is resumed by a run with the same settings; budgets may change."""

    seed: int = 0
    batch_tokens: int = 4096
    optimizer: str = "muon"
    bfloat16: bool = True
    family: str = network.FAMILIES[0]
    compiled: bool = False


@dataclass
class Position:
    """The progress of a run: epoch, index of the batch, and the budget spent so far."""

    epoch: int = 0
    index: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Run:
    """One training run in the folder `work`.

    It keeps `state.pt` there, to resume from, and `log.jsonl`, with a line every few steps.
    """

    def __init__(
        self,
        source: dialogue.Source,
        held: list[Question],
        tokens: ChatTokens,
        config: TrainingConfig,
        schedule: Schedule,
        work: Path,
    ) -> None:
        """Start a new run, or resume the run whose state is in `work`.

        Args:
            source: generator of the dialogues to train on.
            held: phrasings that are not trained on; the recall is measured on a sample of them.
            tokens: the tokenizer.
            config: the settings.
            schedule: the budget.
            work: an existing folder.

        Raises:
            ValueError: the state in `work` is of other settings or another corpus.
        """
        self.source = source
        self.tokens = tokens
        self.config = config
        self.schedule = schedule
        self.work = work
        sample = random.Random(config.seed).sample(held, min(TESTED, len(held)))
        self.held = [encode(question, tokens) for question in sample]
        self.model = network.build(
            config.family,
            tokens.size,
            tokens.end,  # type: ignore[arg-type]
            tokens.pad,  # type: ignore[arg-type]
            config.seed,
        )
        self.optimizer = Optimizer(
            network.named(self.model),
            config.optimizer,
            network.EMBEDDING,
        )
        self.loss = network.loss
        if config.compiled:
            self.loss = torch.compile(network.loss, dynamic=True)
        self.position = Position()
        self.console = Console()
        self._resume()

    def train(self) -> network.Model:
        """Train to the end of the budget and return the model, in float32 and not quantized."""
        position = self.position
        started = time.monotonic() - position.seconds
        saved = logged = time.monotonic()
        logged_tokens = position.tokens
        losses: list[float] = []  # since the last line of the log
        for batch in self._batches():
            progress = self.schedule.progress(position.tokens, position.seconds)
            if progress >= 1.0:
                break
            self.model.train()
            weights = network.parameters(self.model, quantized(progress))
            loss = self.loss(self.model, weights, batch, self.config.bfloat16)
            loss.backward()
            norm = self.optimizer.step(rate(progress))
            losses.append(loss.item())
            position.step += 1
            position.index += 1
            position.tokens += batch.tokens
            position.seconds = time.monotonic() - started
            if position.step % LOG_EVERY == 0:
                speed = (position.tokens - logged_tokens) / (time.monotonic() - logged)
                self._log(progress, sum(losses) / len(losses), norm, speed)
                logged, logged_tokens = time.monotonic(), position.tokens
                losses = []
            if time.monotonic() - saved > SAVE_EVERY:
                self._save()
                saved = time.monotonic()
        self._save()
        return self.model

    def _batches(self) -> Iterator[Batch]:
        """Yield the batches from the position on, without end."""
        while True:
            dialogues = self.source.epoch(self.position.epoch)
            rng = random.Random(f"{self.config.seed} batches {self.position.epoch}")
            rows = [cut(self.tokens.encode(each), rng) for each in dialogues]
            batches = bucketed(rows, self.tokens.pad, self.config.batch_tokens, rng)  # type: ignore[arg-type]
            yield from batches[self.position.index :]
            self.position.epoch += 1
            self.position.index = 0

    def _log(self, progress: float, loss: float, norm: float, speed: float) -> None:
        """Write a line of the log, sometimes with the recall, and print the same line."""
        position = self.position
        line: dict[str, float | int | bool] = {
            **asdict(position),
            "progress": progress,
            "loss": loss,
            "norm": norm,
            "tokens_per_second": speed,
            "quantized": quantized(progress),
        }
        if position.step % TEST_EVERY == 0:
            weights = network.parameters(self.model, quantized(progress))
            right = correct(self.model, weights, self.held, self.tokens.pad)
            line["recall"] = sum(right) / len(right)
        with (self.work / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        left = position.seconds / max(progress, 1e-6) * (1 - progress) / 60
        recall = f"  recall {line['recall']:.1%}" if "recall" in line else ""
        self.console.print(
            f"{progress:6.1%}  step {position.step}  epoch {position.epoch}  "
            f"{position.tokens / 1e6:.2f} M tokens  loss {loss:.4f}  {speed:,.0f} tokens/s  "
            f"{left:.0f} min left{recall}",
            highlight=False,
            soft_wrap=True,
        )

    def _identity(self) -> dict[str, Any]:
        """Return the settings that a state on disk and the run that resumes it must share."""
        return {"config": asdict(self.config), "corpus": fingerprint(self.source.entries)}

    def _save(self) -> None:
        """Write the state beside the old one, then over it: an interrupted write loses nothing."""
        state = {
            "identity": self._identity(),
            "position": asdict(self.position),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state(),
            "random": torch.get_rng_state(),
        }
        fresh = self.work / "state.tmp"
        torch.save(state, fresh)
        fresh.replace(self.work / "state.pt")

    def _resume(self) -> None:
        """Restore the state in `work`; without a state, start a log."""
        path = self.work / "state.pt"
        if not path.exists():
            (self.work / "log.jsonl").write_text("")
            return
        state = torch.load(path, weights_only=True)
        if state["identity"] != self._identity():
            raise ValueError(
                f"{path} belongs to another run: expected {self._identity()}, "
                f"found {state['identity']}. Give another --work, or remove the folder to begin "
                "anew"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.restore(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.position = Position(**state["position"])
        # Steps after the last save are taken again, and logged again.
        log = self.work / "log.jsonl"
        step, millions = self.position.step, self.position.tokens / 1e6
        lines = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= step]
        log.write_text("".join(line + "\n" for line in lines))
        self.console.print(f"resumed at step {step}, {millions:.2f} M tokens")
