# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.13.0",
#   "transformers>=5.23,<6",
#   "tokenizers>=0.22",
#   "safetensors>=0.8",
#   "numpy>=2",
#   "mlx[cpu]>=0.32.4,<0.33; sys_platform == 'linux'",
#   "mlx>=0.32.4,<0.33; sys_platform == 'darwin'",
#   "matplotlib>=3.10",
#   "rich>=14",
# ]
# ///
"""Make pico: from the corpus to the checkpoint, its recall and its loss plot.

    uv run tools/pico/make.py

A run takes one to two hours on two cores. The same command resumes an interrupted run. A trial run
of two minutes:

    uv run tools/pico/make.py --tokens 2e5 --work .cache/try --out .cache/try/pico

No GPU is used, so torch's smaller CPU wheel is enough. It may come from another folder or page of
wheels: `uv run --find-links WHEELS tools/pico/make.py`.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import corpus
import dialogue
import export
import network
import outside
import quantization
import recall
import tokens
import torch
from matplotlib.figure import Figure
from optimizer import NAMES, Schedule
from train import Run, TrainingConfig

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Trains pico, the model built into tinyllm, from its corpus."
    )
    parser.add_argument(
        "--tokens", type=float, default=20e6, help="budget in tokens (default 20e6)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="budget in minutes of training; the schedule fits the scarcer budget",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of weights and dialogues (default 0)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / ".cache" / "pico",
        help="folder of state and log (default %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "packages/tinyllm-qwen/src/tinyllm_qwen/pico",
        help="folder of the checkpoint",
    )
    parser.add_argument(
        "--family",
        choices=network.FAMILIES,
        default=network.FAMILIES[0],
        help="qwen3.5: with gated DeltaNet layers and a draft head (default %(default)s)",
    )
    parser.add_argument("--threads", type=int, help="threads of PyTorch (default: its own choice)")
    parser.add_argument("--optimizer", choices=NAMES, default="muon", help="default %(default)s")
    parser.add_argument("--batch", type=int, default=4096, help="tokens a step (default 4096)")
    parser.add_argument(
        "--float32", action="store_true", help="train in float32 instead of bfloat16 autocast"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the loss first: some minutes, then 1.5 times the speed; needs a compiler",
    )
    args = parser.parse_args()
    for name in ("tokens", "minutes", "batch", "threads"):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:  # false for NaN, too
            parser.error(f"--{name}: expected a finite number above 0, got {value}")
    return args


def make(args: argparse.Namespace) -> None:
    """Make the tokenizer, the weights, the checkpoint, the recall, the plot and the card.

    Raises:
        ValueError: the corpus has faults, the folder of state is another run's, or a check failed.
    """
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    quantization.check()
    entries = corpus.read(HERE / "corpus")
    held = corpus.questions(entries)
    source = dialogue.Source(entries, outside.read(HERE / "corpus" / "outside.words"), args.seed)
    folder = args.work / "tokenizer"
    # A run that ended before its first state may have left the tokenizer of another corpus.
    resumed = (args.work / "state.pt").exists()
    chat = tokens.ChatTokens(folder) if resumed else tokens.train(corpus.texts(entries), folder)
    dialogues = source.epoch(0)
    chat.check(dialogues[:200])
    phrasings = sum(len(entry.ask) + len(entry.held) for entry in entries)
    follows = sum(len(entry.follow) for entry in entries)
    print(
        f"{len(entries)} entries, {phrasings} phrasings, {follows} follow-ups, "
        f"{len(held)} phrasings held out",
        flush=True,
    )

    config = TrainingConfig(
        seed=args.seed,
        batch_tokens=args.batch,
        optimizer=args.optimizer,
        bfloat16=not args.float32,
        family=args.family,
        compiled=args.compile,
    )
    run = Run(source, held, chat, config, Schedule(args.tokens, args.minutes), args.work)
    model = run.train()
    model.save_pretrained(args.work / "float32")

    plot(args.work / "log.jsonl", args.work / "loss.png")
    before = recall.measure(model, chat, entries, held)
    size = export.write(model, chat, args.out)
    export.read(model, args.out)
    after = recall.measure(model, chat, entries, held)
    table = recall.table(before, after)
    both = {"float32": before, "4-bit": after}
    (args.work / "recall.json").write_text(json.dumps(both, indent=1) + "\n")
    (args.work / "recall.md").write_text(table)
    figures = {
        "parameters": f"{model.num_parameters():,}",
        "vocabulary": str(chat.size),
        "bytes": f"{size:,}",
        "context": str(model.config.max_position_embeddings),
        "longest": str(max(len(chat.encode(each)[0]) for each in dialogues)),
        "entries": str(len(entries)),
        "phrasings": f"{phrasings:,}",
        "follows": str(follows),
        "tokens": f"{run.position.tokens / 1e6:.1f}",
        "minutes": f"{run.position.seconds / 60:.0f}",
        "epochs": str(run.position.epoch),
        "optimizer": args.optimizer,
        "seed": str(args.seed),
        "held": f"{len(held):,}",
        "recall": table.strip(),
    }
    export.write_card(args.out, figures)
    print(table)
    print(f"checkpoint of {size:,} bytes in {args.out}")
    print(f"recall.json, recall.md and loss.png in {args.work}")


def plot(log: Path, image: Path) -> None:
    """Draw `log.jsonl` into the PNG file `image`; the quantization-aware part is shaded."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    millions = [line["tokens"] / 1e6 for line in lines]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(millions, [line["loss"] for line in lines], color="tab:blue", linewidth=1)
    axes.set(xlabel="tokens, millions", ylabel="loss on answers", yscale="log")
    axes.set_title("pico: training")
    axes.grid(alpha=0.3, which="both")
    # Shade from the last line without quantization on: a run whose budget was raised may have left
    # the quantized part and entered it again.
    plain = [tokens for tokens, line in zip(millions, lines, strict=True) if not line["quantized"]]
    if plain and plain[-1] < millions[-1]:
        axes.axvspan(plain[-1], millions[-1], alpha=0.12, color="tab:gray", label="4-bit weights")
        axes.legend(loc="center right")
    tested = [line for line in lines if "recall" in line]
    if tested:
        tested_millions = [line["tokens"] / 1e6 for line in tested]
        percents = [100 * line["recall"] for line in tested]
        right = axes.twinx()
        right.plot(tested_millions, percents, "o-", color="tab:orange", markersize=3)
        right.set(ylabel="recall on held-out phrasings, percent", ylim=(0, 100))
    figure.savefig(image, dpi=120)


if __name__ == "__main__":
    try:
        make(arguments())
    except ValueError as error:
        sys.exit(f"make.py: {error}")
