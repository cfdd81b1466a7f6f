"""Lines of stdin as questions, where several processes share the model."""

from collections.abc import Callable
from typing import Any, TextIO

import pytest
from tinyllm_chat import lines
from tinyllm_chat.errors import ChatError

Talk = Callable[..., Any]


@pytest.mark.parametrize(
    ("error", "asked"), [(ChatError("too long"), 2), (RuntimeError("a rank is gone"), 1)]
)
def test_only_a_failed_computation_ends_the_talk(
    talk: Talk,
    scripted: str,
    screen: Callable[[], TextIO],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    asked: int,
) -> None:
    made = talk(scripted)
    questions = []

    def ask(question: str, *, interruptible: bool) -> None:
        questions.append(question)
        raise error

    monkeypatch.setattr(made.session, "ask", ask)
    source = screen()
    source.write("one\ntwo\n")
    source.seek(0)
    if asked == 1:
        with pytest.raises(RuntimeError, match="a rank is gone"):
            lines.talk(made.session, source)
    else:
        lines.talk(made.session, source)
        assert made.err.getvalue().count("too long") == asked
    assert questions == ["one", "two"][:asked]
