"""A conversation keeps what was said, fits into its context, and goes to a file and back."""

import json
from pathlib import Path

import pytest
from tinyllm_chat import transcript
from tinyllm_chat.context import Context
from tinyllm_chat.conversation import Conversation, Message, Turn
from tinyllm_chat.errors import ChatError


def said(*turns: tuple[str, str], system: str | None = None) -> Conversation:
    return Conversation(system, [Turn(question, answer) for question, answer in turns])


def letters(messages: list[Message]) -> list[int]:
    """A tokenizer with a token a character, and one more a message."""
    return [ord(letter) for message in messages for letter in f"{message['content']}."]


def test_messages_are_those_of_a_chat_template() -> None:
    conversation = Conversation("Be brief.")
    conversation.ask("one?")
    conversation.answer("1", "hm")
    conversation.ask("two?")
    assert conversation.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "1", "reasoning_content": "hm"},
        {"role": "user", "content": "two?"},
    ]


def test_an_answer_needs_a_question() -> None:
    with pytest.raises(ChatError, match="no question"):
        said(("one", "1")).answer("2")
    with pytest.raises(ChatError, match="nothing has been said"):
        Conversation().retract()


def test_what_fits_is_left_alone() -> None:
    conversation = said(("a" * 20, "b" * 20))
    conversation.ask("c" * 20)
    prompt = Context(75, letters).fit(conversation, 12)
    assert (len(prompt), conversation.forgotten) == (63, 0)


def test_the_oldest_turns_go_first_and_the_system_message_stays() -> None:
    conversation = said(*[(f"{n}" * 9, f"{n}" * 9) for n in range(5)], system="S" * 9)
    conversation.ask("q" * 9)
    # 120 tokens; a system message, a question and a turn are 40, which is half of 80.
    prompt = Context(80, letters).fit(conversation, 100)
    assert "".join(map(chr, prompt)) == "SSSSSSSSS.444444444.444444444.qqqqqqqqq."
    assert conversation.forgotten == 4
    assert len(conversation.turns) == 6


def test_a_question_that_fills_half_of_the_context_stands_alone() -> None:
    conversation = said(("a", "b"), ("c" * 30, "d"))
    conversation.ask("e" * 60)
    assert len(Context(80, letters).fit(conversation, 100)) == 61
    assert conversation.forgotten == 2


@pytest.mark.parametrize(("length", "fits"), [(78, True), (79, False)])
def test_a_question_longer_than_the_context_is_refused_with_counts(length: int, fits: bool) -> None:
    conversation = said(("a", "b"))
    conversation.ask("q" * length)
    context = Context(80, letters)
    if fits:
        assert len(context.fit(conversation, 100)) == 79
    else:
        with pytest.raises(ChatError, match="80 tokens, and the context takes 80"):
            context.fit(conversation, 100)
        assert conversation.forgotten == 0


def test_a_long_question_is_rendered_a_few_times_however_many_turns_there_were() -> None:
    rendered = 0

    def counted(messages: list[Message]) -> list[int]:
        nonlocal rendered
        rendered += 1
        return letters(messages)

    conversation = said(*[("q", "a")] * 1000)
    conversation.ask("q" * 100)
    Context(300, counted).fit(conversation, 8)
    assert rendered <= 13
    assert conversation.forgotten == 1001 - 1 - (150 - 101) // 4


def test_a_file_gives_the_conversation_back(tmp_path: Path) -> None:
    conversation = Conversation("Be brief.", [Turn("one? 日本", "1 🙂", "hm"), Turn("two?", "")])
    transcript.save(tmp_path / "talk.json", conversation, "pico")
    assert transcript.load(tmp_path / "talk.json") == conversation
    assert json.loads((tmp_path / "talk.json").read_text())["version"] == 1


def test_a_saved_conversation_may_be_overwritten_and_nothing_else_may(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    transcript.save(path, said(("a", "b")), "pico")
    transcript.save(path, said(("c", "d")), "pico")
    assert transcript.load(path).turns == [Turn("c", "d")]
    path.write_text("my notes")
    with pytest.raises(ChatError, match="choose another name"):
        transcript.save(path, said(("a", "b")), "pico")
    assert path.read_text() == "my notes"


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="cannot be written"):
        transcript.save(tmp_path / "no" / "talk.json", said(("a", "b")), "pico")
    with pytest.raises(ChatError, match="choose another name"):
        transcript.save(tmp_path, said(("a", "b")), "pico")
    assert list(tmp_path.iterdir()) == []


FINE: dict[str, object] = {"format": "tinyllm-chat", "version": 1, "system": None, "turns": []}
TURN = {"question": "q", "answer": "a", "reasoning": ""}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("{", "JSON in UTF-8"),
        ("[" * 100_000, "JSON in UTF-8"),
        ("[]", "what /save writes"),
        (json.dumps({"format": "other"}), "what /save writes"),
        (json.dumps(FINE | {"version": 2}), "expected version 1 of the format, got 2"),
        (json.dumps(FINE | {"system": 1}), "expected a system message"),
        (json.dumps(FINE | {"turns": None}), "a list of turns"),
        (json.dumps(FINE | {"turns": [TURN, {"question": "q"}]}), "turn 1: expected a question"),
        (json.dumps(FINE | {"turns": ["q"]}), "turn 0: expected a question"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "talk.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ChatError, match=says):
        transcript.load(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full"])
def test_what_has_no_end_is_neither_read_nor_overwritten(path: str) -> None:
    with pytest.raises(ChatError, match="no saved conversation"):
        transcript.load(Path(path))
    with pytest.raises(ChatError, match="no saved conversation"):
        transcript.save(Path(path), said(("a", "b")), "pico")


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "talk.json"
    transcript.save(path, said(("a", "b")), "pico")
    monkeypatch.setattr(transcript, "MAX_BYTES", 10)
    with pytest.raises(ChatError, match="no saved conversation"):
        transcript.load(path)
