"""The REPL, typed at through prompt_toolkit's pipe."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from tinyllm_chat import repl
from tinyllm_chat.commands import COMMANDS
from tinyllm_chat.completion import CommandCompleter
from tinyllm_chat.history import SafeHistory, history_path
from tinyllm_chat.reader import Reader

Talk = Callable[..., Any]
CTRL_C, CTRL_D = "\x03", "\x04"


def type_at(made: Any, keys: str) -> Any:
    """Type keys, then Ctrl-D."""
    with create_pipe_input() as source:
        source.send_text(keys + CTRL_D)
        repl.talk(made.session, Reader(InMemoryHistory(), source, DummyOutput()))
    return made


def questions(made: Any) -> list[str]:
    return [turn.question for turn in made.session.conversation.turns]


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ("hi\r", ["hi"]),
        ("one\rtwo\r", ["one", "two"]),
        ("one\x1b\rtwo\r", ["one\ntwo"]),  # Esc Enter, and what Alt+Enter sends
        ("\x1b[200~one\ntwo\nthree\x1b[201~\r", ["one\ntwo\nthree"]),  # a bracketed paste
        ("no" + CTRL_C + "yes\r", ["yes"]),
        ("\r  \r", []),
        ("/etc/passwd is what?\r", ["/etc/passwd is what?"]),
        (" hello\x01x\r", ["x hello"]),  # Ctrl-A: the beginning of the line
    ],
)
def test_what_is_typed_is_what_is_asked(
    talk: Talk, scripted: str, keys: str, asked: list[str]
) -> None:
    made = type_at(talk(scripted), keys)
    assert questions(made) == asked
    assert made.out.getvalue() == "It is so.\n" * len(asked)


def test_help_lists_every_command(talk: Talk, scripted: str) -> None:
    shown = type_at(talk(scripted), "/help\r").err.getvalue()
    assert len(COMMANDS) == 10
    for command in COMMANDS:
        assert f"{command.name} {command.argument}".strip() in shown
        assert command.help in shown


def test_exit_leaves(talk: Talk, scripted: str) -> None:
    assert questions(type_at(talk(scripted), "/exit\rhi\r")) == []


def test_a_system_message_is_set_shown_and_removed(talk: Talk, scripted: str) -> None:
    made = type_at(talk(scripted), "/system Be brief.\r/system\r/system -\r")
    assert made.err.getvalue() == "system: Be brief.\nsystem: Be brief.\nno system message\n"


def test_thinking_is_switched(talk: Talk, scripted: str) -> None:
    made = type_at(talk(scripted), "/think off\rhi\r/think on\rhi\r")
    assert [turn.reasoning for turn in made.session.conversation.turns] == ["", "Hm."]


def test_regen_replaces_the_answer_and_reset_forgets(talk: Talk, random: str) -> None:
    made = type_at(talk(random, max_tokens=9, temperature=3.0, seed=1, system="S"), "hi\r/regen\r")
    assert questions(made) == ["hi"]
    first, second = made.out.getvalue().split()
    assert second == made.session.conversation.turns[0].answer.strip()
    assert first != second
    type_at(made, "/reset\r")
    assert (questions(made), made.session.conversation.system) == ([], "S")


def test_a_conversation_is_saved_and_goes_on_elsewhere(
    talk: Talk, scripted: str, tmp_path: Path
) -> None:
    path = tmp_path / "my talk.json"
    before = type_at(talk(scripted), f"/system S\rone\r/save {path}\r")
    after = type_at(talk(scripted), f"/load {path}\rtwo\r")
    assert after.session.conversation.turns[:1] == before.session.conversation.turns
    assert (questions(after), after.session.conversation.system) == (["one", "two"], "S")


def test_stats_name_the_model_and_the_last_answer(talk: Talk, scripted: str) -> None:
    made = type_at(talk(scripted), "hi\r/stats\r")
    shown = made.err.getvalue().split("model    ")[1]
    assert scripted in shown
    assert "1,024 tokens held" in shown
    assert "answer 6 tokens" in shown


def test_another_model_goes_on_with_the_conversation(
    talk: Talk, scripted: str, random: str
) -> None:
    made = type_at(talk(random, max_tokens=4), f"one\r/model {scripted}\rtwo\r")
    one, two = made.session.conversation.turns
    assert len(one.answer) == 4
    assert two.reasoning == "Hm."
    assert made.session.last.stats.prompt_tokens > len("one") + len("two") + 4


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("/hepl", "there is no command /hepl: /help lists them"),
        ("/regen", "nothing has been said yet"),
        ("/reset now", "/reset takes no argument, got 'now'"),
        ("/think maybe", "/think: expected on or off, got 'maybe'"),
        ("/save", "/save: expected the name of a file"),
        ("/load /no/such/file", "/no/such/file cannot be read"),
        ("/model /no/such/folder", "'/no/such/folder' is neither a folder"),
        ("x" * 2000, "the context takes 1,024"),
    ],
)
def test_a_mistake_is_a_line_and_the_talk_goes_on(
    talk: Talk, scripted: str, typed: str, says: str
) -> None:
    made = type_at(talk(scripted), f"{typed}\rhi\r")
    assert made.err.getvalue().startswith("chat: ")
    assert says in made.err.getvalue().splitlines()[0]
    assert questions(made) == ["hi"]


def test_control_c_stops_the_answer_and_keeps_what_was_said(talk: Talk, random: str) -> None:
    made = talk(random, max_tokens=1000)
    write = made.session.terminal.answer
    sent = threading.Event()

    def write_and_interrupt(text: str) -> None:
        write(text)
        if len(made.out.getvalue()) >= 5 and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)

    made.session.terminal.answer = write_and_interrupt
    handler = signal.getsignal(signal.SIGINT)
    type_at(made, "hi\r")
    assert signal.getsignal(signal.SIGINT) is handler
    (turn,) = made.session.conversation.turns
    assert turn.answer == made.out.getvalue().strip()
    assert 5 <= len(turn.answer) < 20
    assert "stopped; what was said is kept" in made.err.getvalue()


def test_control_c_before_the_first_word_takes_the_question_back(talk: Talk, random: str) -> None:
    made = type_at(talk(random, max_tokens=5, temperature=1.0), "one\r")
    before = list(made.session.conversation.turns)
    reply = made.assistant.reply

    def interrupted(*arguments: Any, **options: Any) -> Any:
        made.assistant.cache.clear()  # so that there is a prompt to be read
        os.kill(os.getpid(), signal.SIGINT)
        return reply(*arguments, **options)

    made.assistant.reply = interrupted
    type_at(made, "two\r/regen\r")
    assert made.session.conversation.turns == before
    assert made.err.getvalue().count("stopped; the question is taken back") == 2


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("/s", ["/system", "/save", "/stats"]),
        ("/think o", ["on", "off"]),
        ("/think of", ["off"]),
        ("hello /s", []),
        ("/reset ", []),
    ],
)
def test_commands_are_completed(typed: str, offered: list[str]) -> None:
    found = CommandCompleter().get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in found] == offered


def test_files_are_completed(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text("")
    document = Document(f"/load {tmp_path}/ta")
    (found,) = CommandCompleter().get_completions(document, CompleteEvent())
    assert found.text == "lk.json"


def test_history_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    path = history_path({"XDG_STATE_HOME": str(tmp_path)})
    warnings: list[str] = []
    history = SafeHistory(path, warnings.append)
    for typed in ("one", "two\nlines", "odd \udce9", "x" * 10_001):
        history.store_string(typed)
    assert path.stat().st_mode & 0o777 == 0o600
    again = SafeHistory(path, warnings.append)
    assert list(again.load_history_strings()) == ["odd ?", "two\nlines", "one"]
    assert warnings == []


def test_a_history_that_cannot_be_kept_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "tinyllm").write_text("a file where a folder should be")
    warnings: list[str] = []
    history = SafeHistory(history_path({"XDG_STATE_HOME": str(tmp_path)}), warnings.append)
    history.store_string("one")
    history.store_string("two")
    (warning,) = warnings
    assert "the input history is not kept" in warning


def test_a_relative_state_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    expected = Path("/home/someone/.local/state/tinyllm/chat_history")
    assert history_path({"XDG_STATE_HOME": "state"}) == expected
    assert history_path({}) == expected


def test_a_long_paste_is_shown_in_brief_and_asked_whole(tmp_path: Path) -> None:
    history = SafeHistory(tmp_path / "history", pytest.fail)
    long = "a\n" * 6_000
    with create_pipe_input() as source:
        reader = Reader(history, source, DummyOutput())
        source.send_text(f"Sum up: \x1b[200~{long}\x1b[201~, please\r")
        assert reader.read() == f"Sum up: {long}, please"
        source.send_text("\x1b[A, again\r")  # the key up: the input before this one
        assert reader.read() == f"Sum up: {long}, please, again"
        source.send_text("[paste 9: 12,000 characters]\r")
        assert reader.read() == "[paste 9: 12,000 characters]"
    assert history.get_strings()[0] == "Sum up: [paste 1: 12,000 characters], please"
    assert (tmp_path / "history").read_text() == ""
