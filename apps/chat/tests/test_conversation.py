"""Conversations: messages, the context window, and saved files."""

import json
from pathlib import Path

import pytest
from tinyllm_chat import transcript
from tinyllm_chat.conversation import Conversation, Message, Turn
from tinyllm_chat.errors import ChatError
from tinyllm_chat.local.context import fit_prompt
from tinyllm_qwen.text.chat_prompt import ChatPrompt


def conversation_of(*turns: tuple[str, str], system: str | None = None) -> Conversation:
    return Conversation(system, [Turn(question, answer) for question, answer in turns])


def render(messages: list[Message]) -> ChatPrompt:
    """Render messages. Each character is a token, and the end of a message is one more."""
    text = "".join(f"{message['content']}." for message in messages)
    return ChatPrompt(text, text, lambda marked, _max_tokens: [ord(letter) for letter in marked])


def test_messages_have_the_fields_of_chat_templates() -> None:
    conversation = Conversation("Be brief.")
    conversation.add_question("one?")
    conversation.add_answer("1", "hm")
    conversation.add_question("two?")
    assert conversation.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "1", "reasoning_content": "hm"},
        {"role": "user", "content": "two?"},
    ]


def test_an_answer_needs_a_question() -> None:
    with pytest.raises(ChatError, match="no question"):
        conversation_of(("one", "1")).add_answer("2")
    with pytest.raises(ChatError, match="no question yet"):
        Conversation().pop_turn()


def test_a_conversation_that_fits_is_unchanged() -> None:
    conversation = conversation_of(("a" * 20, "b" * 20))
    conversation.add_question("c" * 20)
    prompt = fit_prompt(conversation, render, 75, 12)
    assert (len(prompt.tokens), prompt.first_turn) == (63, 0)


def test_the_oldest_turns_are_dropped_and_the_system_message_stays() -> None:
    conversation = conversation_of(*[(f"{n}" * 9, f"{n}" * 9) for n in range(5)], system="S" * 9)
    conversation.add_question("q" * 9)
    # 120 tokens; a system message, a question and a turn are 40, which is half of 80.
    prompt = fit_prompt(conversation, render, 80, 100)
    assert "".join(map(chr, prompt.tokens)) == "SSSSSSSSS.444444444.444444444.qqqqqqqqq."
    assert prompt.first_turn == 4
    assert len(conversation.turns) == 6


def test_a_question_of_half_the_context_drops_all_other_turns() -> None:
    conversation = conversation_of(("a", "b"), ("c" * 30, "d"))
    conversation.add_question("e" * 60)
    prompt = fit_prompt(conversation, render, 80, 100)
    assert (len(prompt.tokens), prompt.first_turn) == (61, 2)


@pytest.mark.parametrize(("length", "fits"), [(78, True), (79, False)])
def test_a_question_longer_than_the_context_is_refused_with_counts(length: int, fits: bool) -> None:
    conversation = conversation_of(("a", "b"))
    conversation.add_question("q" * length)
    if fits:
        assert len(fit_prompt(conversation, render, 80, 100).tokens) == 79
    else:
        with pytest.raises(ChatError, match=r"fewer than 80 tokens .* got 80:"):
            fit_prompt(conversation, render, 80, 100)


def test_a_long_question_is_rendered_a_few_times_for_any_number_of_turns() -> None:
    rendered = 0

    def counted(messages: list[Message]) -> ChatPrompt:
        nonlocal rendered
        rendered += 1
        return render(messages)

    conversation = conversation_of(*[("q", "a")] * 1000)
    conversation.add_question("q" * 100)
    prompt = fit_prompt(conversation, counted, 300, 8)
    assert rendered <= 13
    assert prompt.first_turn == 1001 - 1 - (150 - 101) // 4


def test_a_saved_conversation_is_loaded_unchanged(tmp_path: Path) -> None:
    conversation = Conversation("Be brief.", [Turn("one? 日本", "1 🙂", "hm"), Turn("two?", "")])
    transcript.save(tmp_path / "talk.json", conversation, "pico")
    assert transcript.load(tmp_path / "talk.json") == conversation
    assert json.loads((tmp_path / "talk.json").read_text())["version"] == 1


def test_only_a_saved_conversation_may_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    transcript.save(path, conversation_of(("a", "b")), "pico")
    transcript.save(path, conversation_of(("c", "d")), "pico")
    assert transcript.load(path).turns == [Turn("c", "d")]
    path.write_text("my notes")
    with pytest.raises(ChatError, match="choose another name"):
        transcript.save(path, conversation_of(("a", "b")), "pico")
    assert path.read_text() == "my notes"


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="cannot be written"):
        transcript.save(tmp_path / "no" / "talk.json", conversation_of(("a", "b")), "pico")
    with pytest.raises(ChatError, match="choose another name"):
        transcript.save(tmp_path, conversation_of(("a", "b")), "pico")
    assert list(tmp_path.iterdir()) == []


VALID: dict[str, object] = {"format": "tinyllm-chat", "version": 1, "system": None, "turns": []}
TURN = {"question": "q", "answer": "a", "reasoning": ""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "a JSON file in UTF-8"),
        ("[" * 100_000, "a JSON file in UTF-8"),
        ("[]", "written by /save"),
        (json.dumps({"format": "other"}), "written by /save"),
        (json.dumps(VALID | {"version": 2}), "expected version 1 of the format, got 2"),
        (json.dumps(VALID | {"system": 1}), "expected a system message"),
        (json.dumps(VALID | {"turns": None}), "a list of turns"),
        (json.dumps(VALID | {"turns": [TURN, {"question": "q"}]}), "turn 1: expected a question"),
        (json.dumps(VALID | {"turns": ["q"]}), "turn 0: expected a question"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "talk.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ChatError, match=message):
        transcript.load(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full"])
def test_a_device_is_neither_read_nor_overwritten(path: str) -> None:
    with pytest.raises(ChatError, match="not a saved conversation"):
        transcript.load(Path(path))
    with pytest.raises(ChatError, match="not a saved conversation"):
        transcript.save(Path(path), conversation_of(("a", "b")), "pico")


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talk.json"
    transcript.save(path, conversation_of(("a", "b")), "pico")
    monkeypatch.setattr(transcript, "MAX_BYTES", 10)
    with pytest.raises(ChatError, match="not a saved conversation"):
        transcript.load(path)


def test_the_home_folder_of_an_unknown_user_is_refused_with_the_path() -> None:
    path = Path("~unknown-user/x")
    conversation = Conversation()
    for attempt in (
        lambda: transcript.load(path),
        lambda: transcript.save(path, conversation, "m"),
    ):
        with pytest.raises(ChatError, match="~unknown-user/x: the home folder is unknown"):
            attempt()
