"""Recall: how many held-out phrasings get their answer word for word under greedy decoding.

Greedy decoding gives exactly the answer if and only if, with the answer so far as context, its
next token is the most likely at every position up to `<|im_end|>`. So one forward pass judges a
question, and only the misses are decoded, to show the answers of pico.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import network
import torch
from batches import Encoded, batch, last_answer
from corpus import OUTSIDE, Entry, Question
from dialogue import Dialogue
from tokens import ChatTokens
from torch import Tensor

ROWS = 64  # questions judged or decoded at once


def encode(question: Question, tokens: ChatTokens) -> Encoded:
    """Return the ids of the question with its answer; only the last answer is a target."""
    ids, is_target = tokens.encode(Dialogue((*question.before, (question.ask, question.answer))))
    first = last_answer(is_target)
    return ids, [flag and position >= first for position, flag in enumerate(is_target)]


@torch.no_grad()  # type: ignore[untyped-decorator]
def correct(
    model: network.Model, weights: dict[str, Tensor], rows: Sequence[Encoded], pad: int
) -> list[bool]:
    """Return True for each row whose answer greedy decoding gives.

    `weights` are those of `network.parameters`: the model's own or their 4-bit values.
    """
    model.eval()
    order = sorted(range(len(rows)), key=lambda index: len(rows[index][0]))
    right = [False] * len(rows)
    for at in range(0, len(order), ROWS):
        chosen = order[at : at + ROWS]
        group = batch([rows[index] for index in chosen], pad)
        hits = network.logits(model, weights, group).argmax(-1) == group.targets  # N
        owners = group.positions // group.ids.shape[1]  # N, the row of each position
        wrong = set(owners[~hits].tolist())
        for row, index in enumerate(chosen):
            right[index] = row not in wrong
    return right


@torch.no_grad()  # type: ignore[untyped-decorator]
def say(
    model: network.Model, tokens: ChatTokens, questions: Sequence[Question], limit: int = 128
) -> list[str]:
    """Return the answers of pico to `questions`, decoded greedily."""
    model.eval()
    texts: list[str] = []
    for at in range(0, len(questions), ROWS):
        prompts = []
        for question in questions[at : at + ROWS]:
            ids, is_target = encode(question, tokens)
            prompts.append(ids[: is_target.index(True)])
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), tokens.pad)  # padded on the left, for generate
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=limit,
            do_sample=False,
            eos_token_id=tokens.end,
            pad_token_id=tokens.pad,
        )
        texts += [tokens.tokenizer.decode(row.tolist()) for row in out[:, longest:]]
    return texts


def measure(
    model: network.Model, tokens: ChatTokens, entries: list[Entry], held: list[Question]
) -> dict[str, Any]:
    """Measure the recall of the model's own weights on `held`.

    Returns:
        `groups`: questions asked, answered right and their ratio, in total, by file, of follow-ups
        and of questions outside the subject; `worst`: the ids missed most often, with counts;
        `misses`: each missed question, pico's answer, and the entry that has this answer.
    """
    answers = {part.answer: entry.id for entry in entries for part in (entry, *entry.follow)}
    weights = network.parameters(model, quantized=False)
    right = correct(model, weights, [encode(question, tokens) for question in held], tokens.pad)
    asked: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    for question, good in zip(held, right, strict=True):
        group = OUTSIDE if question.id == OUTSIDE else question.file
        for key in ("total", group, *(("follow-ups",) if question.before else ())):
            asked[key] += 1
            hit[key] += good
    missed = [question for question, good in zip(held, right, strict=True) if not good]
    misses = [
        {
            "id": question.id,
            "ask": question.ask,
            "said": text,
            "answer_of": answers.get(text, "none"),
        }
        for question, text in zip(missed, say(model, tokens, missed), strict=True)
    ]
    worst = Counter(miss["id"] for miss in misses).most_common(20)
    groups = {
        key: {"asked": asked[key], "right": hit[key], "recall": hit[key] / asked[key]}
        for key in sorted(asked)
    }
    return {"groups": groups, "worst": [list(pair) for pair in worst], "misses": misses}


def table(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the two measurements as a Markdown table, and the worst entries in 4 bits."""

    def order_of(name: str) -> tuple[bool, bool, str]:
        return name == "total", name in (OUTSIDE, "follow-ups"), name  # files first, the total last

    lines = ["| questions | asked | float32 | 4-bit |", "|---|---:|---:|---:|"]
    for name in sorted(before["groups"], key=order_of):
        asked, first = before["groups"][name]["asked"], before["groups"][name]["recall"]
        second = after["groups"][name]["recall"]
        lines.append(f"| {name} | {asked} | {first:.1%} | {second:.1%} |")
    if after["worst"]:
        worst = ", ".join(f"{name} ({count})" for name, count in after["worst"][:10])
        lines += ["", f"Most often missed after quantization: {worst}."]
    return "\n".join(lines) + "\n"
