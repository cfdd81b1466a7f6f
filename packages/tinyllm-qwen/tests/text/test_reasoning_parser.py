"""ReasoningParser separates reasoning from the answer, for any division into pieces."""

import random

import pytest
from tinyllm_qwen.text.reasoning import ReasoningParser

TEXTS = [
    ("plain", False, "", "plain"),
    ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
    ("<think>\n\n</think>\n\nyes", False, "", "yes"),
    ("  \n<think>hm</think>yes", False, "hm", "yes"),
    ("hm\n</think>\nyes", True, "hm", "yes"),
    ("<think>a < b, </thin> and  more", False, "a < b, </thin> and  more", ""),
    (
        "The tag <think> opens, </think> closes.",
        False,
        "",
        "The tag <think> opens, </think> closes.",
    ),
    ("<think>a</think>use <think>b</think>", False, "a", "use <think>b</think>"),
    ("<thinking about it", False, "", "<thinking about it"),
    ("<thin", False, "", "<thin"),
    ("", False, "", ""),
    (" \n", False, "", " \n"),
    ("  <", False, "", "  <"),
    ("<think>cut off ", False, "cut off", ""),
]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("text", "opened", "thought", "answer"), TEXTS)
def test_both_parts_are_whole_and_clean_of_tags(
    text: str, opened: bool, thought: str, answer: str, seed: int
) -> None:
    cuts = random.Random(seed)
    thoughts = ReasoningParser(opened=opened)
    segments = []
    while text:
        length = cuts.randint(1, 1 + seed * 3)
        segments += thoughts.push(text[:length])
        text = text[length:]
    segments += thoughts.finish()
    assert "".join(segment.text for segment in segments if segment.thinking) == thought
    assert "".join(segment.text for segment in segments if not segment.thinking) == answer


def test_reasoning_is_streamed() -> None:
    thoughts = ReasoningParser()
    assert thoughts.push("<think>") == []
    (segment,) = thoughts.push("\nstep one, ")
    assert (segment.text, segment.thinking) == ("step one,", True)
