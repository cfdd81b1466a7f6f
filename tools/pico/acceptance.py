"""Measures the draft head of a hybrid pico: accepted draft tokens, and the speed with them.

    uv run python tools/pico/acceptance.py .cache/hybrid/pico

Answers the questions that were held out of training, greedily, without draft tokens and with 1 to 3
in a step. The answers must be equal.
"""

import argparse
import time
from pathlib import Path

import corpus
from tinyllm_kernels import opset
from tinyllm_qwen import Piece, generate, load

COUNTS = (0, 1, 2, 3)


def main() -> None:
    """Print a row for each number of draft tokens."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("checkpoint", type=Path, help="a folder of make.py --family qwen3.5")
    parser.add_argument("--questions", type=int, default=100, help="default: 100")
    parser.add_argument("--ops", default="cpu", help="default: cpu")
    options = parser.parse_args()
    if options.questions < 1:
        parser.error(f"--questions: expected at least 1, got {options.questions}")
    try:
        model, tokenizer = load(options.checkpoint, ops=opset(options.ops), draft_head=True)
    except (OSError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    held = corpus.questions(corpus.read(Path(__file__).parent / "corpus"))
    alone = [question for question in held if not question.before]
    count = min(options.questions, len(alone))
    asked = [alone[i * len(alone) // count].ask for i in range(count)]  # of all files
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": ask}]) for ask in asked]
    print("| drafts a step | drafted | accepted | tokens/s |")
    print("|---:|---:|---:|---:|")
    plain: list[list[int]] = []
    for drafts in COUNTS:
        start = time.perf_counter()
        answers: list[list[Piece]] = [
            list(generate(model, tokenizer, prompt, num_speculative_tokens=drafts))
            for prompt in prompts
        ]
        seconds = time.perf_counter() - start
        tokens = [[piece.token for piece in answer] for answer in answers]
        plain = plain or tokens
        if tokens != plain:
            raise SystemExit(f"{drafts} drafts: the answers differ")
        last = [answer[-1].stats for answer in answers]
        drafted = sum(stats.draft_tokens for stats in last)
        accepted = sum(stats.accepted_tokens for stats in last)
        share = f"{accepted / drafted:.0%}" if drafted else ""
        speed = sum(map(len, tokens)) / seconds
        print(f"| {drafts} | {drafted} | {share} | {speed:.0f} |", flush=True)


if __name__ == "__main__":
    main()
