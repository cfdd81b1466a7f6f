"""The REPL: keys, commands, completion, history, and lines of stdin."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import Input, create_pipe_input
from prompt_toolkit.output import DummyOutput
from tinyllm_chat import repl
from tinyllm_chat.commands import COMMANDS, CommandCompleter
from tinyllm_chat.errors import ChatError
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal.history import InputHistory, history_path, open_history
from tinyllm_chat.terminal.output import Terminal
from tinyllm_chat.terminal.prompt import PromptReader
from tinyllm_qwen.format_bytes import format_bytes

Start = Callable[..., Any]
CTRL_C, CTRL_D = "\x03", "\x04"


def make_reader(history: History, source: Input) -> PromptReader:
    return PromptReader(history, CommandCompleter(), source, DummyOutput())


def type_at(recorded: Any, keys: str) -> Any:
    """Type keys, then Ctrl-D."""
    with create_pipe_input() as source:
        source.send_text(keys + CTRL_D)
        repl.answer_inputs(recorded.session, make_reader(InMemoryHistory(), source))
    return recorded


def questions(recorded: Any) -> list[str]:
    return [turn.question for turn in recorded.session.conversation.turns]


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
        ("a\x1b[31mb\r", ["ab"]),  # a color code, which looks like a mouse event
    ],
)
def test_typed_keys_become_questions(
    start: Start, scripted: str, keys: str, asked: list[str]
) -> None:
    recorded = type_at(start(scripted), keys)
    assert questions(recorded) == asked
    assert recorded.out.getvalue() == "It is so.\n" * len(asked)


def test_ctrl_c_at_the_prompt_says_how_to_leave(start: Start, scripted: str) -> None:
    assert type_at(start(scripted), CTRL_C).err.getvalue() == "Ctrl-D or /exit leaves\n"


def test_help_lists_every_command(start: Start, scripted: str) -> None:
    shown = type_at(start(scripted), "/help\r").err.getvalue()
    assert len(COMMANDS) == 10
    for command in COMMANDS:
        assert f"{command.name} {command.argument}".strip() in shown
        assert command.help in shown


def test_exit_ends_the_conversation(start: Start, scripted: str) -> None:
    assert questions(type_at(start(scripted), "/exit\rhi\r")) == []


def test_a_system_message_is_set_shown_and_removed(start: Start, scripted: str) -> None:
    recorded = type_at(start(scripted), "/system Be brief.\r/system\r/system -\r")
    assert recorded.err.getvalue() == "system: Be brief.\nsystem: Be brief.\nno system message\n"


def test_thinking_is_turned_off_and_on(start: Start, scripted: str) -> None:
    recorded = type_at(start(scripted), "/think off\rhi\r/think on\rhi\r")
    assert [turn.reasoning for turn in recorded.session.conversation.turns] == ["", "Hm."]


def test_another_model_need_not_know_the_effort(start: Start, efforts: str, scripted: str) -> None:
    recorded = type_at(start(efforts, reasoning_effort="low"), f"/model {scripted}\r/think\rhi\r")
    assert "expected thinking on or off, got low" in recorded.err.getvalue()
    assert recorded.err.getvalue().count("thinking: on") == 1
    assert [turn.reasoning for turn in recorded.session.conversation.turns] == ["Hm."]


def test_regen_replaces_the_answer_and_reset_removes_all_turns(start: Start, random: str) -> None:
    recorded = type_at(
        start(random, max_tokens=9, temperature=3.0, seed=1, system="S"), "hi\r/regen\r"
    )
    assert questions(recorded) == ["hi"]
    first, second = recorded.out.getvalue().split()
    assert second == recorded.session.conversation.turns[0].answer.strip()
    assert first != second
    type_at(recorded, "/reset\r")
    assert (questions(recorded), recorded.session.conversation.system) == ([], "S")


def test_a_saved_conversation_continues_in_another_session(
    start: Start, scripted: str, tmp_path: Path
) -> None:
    path = tmp_path / "my talk.json"
    before = type_at(start(scripted), f"/system S\rone\r/save {path}\r")
    after = type_at(start(scripted), f"/load {path}\rtwo\r")
    assert after.session.conversation.turns[:1] == before.session.conversation.turns
    assert (questions(after), after.session.conversation.system) == (["one", "two"], "S")


def test_stats_name_the_model_and_the_last_answer(start: Start, scripted: str) -> None:
    recorded = type_at(start(scripted), "hi\r/stats\r")
    shown = recorded.err.getvalue().split("model    ")[1]
    assert scripted in shown
    assert "1,024 tokens cached" in shown
    assert "answer 6 tokens" in shown


def test_another_model_continues_the_conversation(start: Start, scripted: str, random: str) -> None:
    recorded = type_at(start(random, max_tokens=4, seed=7), f"one\r/model {scripted}\rtwo\r")
    one, two = recorded.session.conversation.turns
    assert len(one.answer) == 4
    assert two.reasoning == "Hm."
    assert recorded.session.last_answer.stats.prompt_tokens > len("one") + len("two") + 4
    assert recorded.session.last_answer.seed == 8


def test_a_model_that_does_not_fit_beside_the_current_one_needs_a_new_start(
    start: Start, scripted: str, random: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = start(scripted).assistant.model.nbytes
    for cached in ("", "hi\r"):  # caches are freed too
        recorded = type_at(start(random, max_tokens=4), cached)
        current = recorded.assistant
        occupied = current.model.nbytes + current.cache.nbytes
        for missing in (1, occupied, occupied + 1):
            free = needed - missing
            monkeypatch.setattr(
                "tinyllm_qwen.checkpoint.memory_check.free_memory", lambda free=free: free
            )
            recorded.err.truncate(recorded.err.seek(0))
            type_at(recorded, f"/model {scripted}\r")
            shown = recorded.err.getvalue()
            alone = missing <= occupied
            assert shown.endswith(f"start chat again with --model {scripted}\n") is alone
            assert (
                f"beside the current model, which takes {format_bytes(occupied)}" in shown
            ) is alone
            assert ("end other programs" in shown) is not alone
            assert recorded.session.assistant is current


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("/hepl", "there is no command /hepl: /help lists the commands"),
        ("/regen", "there is no question yet"),
        ("/reset now", "/reset: expected no argument, got 'now'"),
        ("/think maybe", "/think: expected one of on, off, low, medium, xhigh, got 'maybe'"),
        ("/think low", "expected thinking on or off, got low: the chat template of this model"),
        ("/save", "/save: expected the name of a file"),
        ("/load /no/such/file", "/no/such/file cannot be read"),
        ("/model /no/such/folder", "'/no/such/folder' is neither a folder"),
        ("x" * 2000, "expected fewer than 1,024 tokens"),
    ],
)
def test_an_error_is_a_notice_and_the_conversation_continues(
    start: Start, scripted: str, typed: str, message: str
) -> None:
    recorded = type_at(start(scripted), f"{typed}\rhi\r")
    assert recorded.err.getvalue().startswith("chat: ")
    assert message in recorded.err.getvalue().splitlines()[0]
    assert questions(recorded) == ["hi"]


def test_ctrl_c_stops_the_answer_and_keeps_its_text(start: Start, random: str) -> None:
    recorded = start(random, max_tokens=1000)
    write = recorded.session.terminal.answer
    sent = threading.Event()

    def write_and_interrupt(text: str) -> None:
        write(text)
        if len(recorded.out.getvalue()) >= 5 and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)

    recorded.session.terminal.answer = write_and_interrupt
    handler = signal.getsignal(signal.SIGINT)
    type_at(recorded, "hi\r")
    assert signal.getsignal(signal.SIGINT) is handler
    (turn,) = recorded.session.conversation.turns
    assert turn.answer == recorded.out.getvalue().strip()
    assert 5 <= len(turn.answer) < 20
    assert "stopped; the text so far is kept" in recorded.err.getvalue()


def test_ctrl_c_before_the_first_token_removes_the_question(start: Start, random: str) -> None:
    recorded = type_at(start(random, max_tokens=5, temperature=1.0), "one\r")
    before = list(recorded.session.conversation.turns)
    reply = recorded.assistant.reply

    def interrupted(*arguments: Any, **options: Any) -> Any:
        recorded.assistant.cache.acquire([])  # empties it, so that the prompt is computed again
        os.kill(os.getpid(), signal.SIGINT)
        return reply(*arguments, **options)

    recorded.assistant.reply = interrupted
    type_at(recorded, "two\r/regen\r")
    assert recorded.session.conversation.turns == before
    assert recorded.err.getvalue().count("stopped; the question is removed") == 2


@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        ("/s", ["/system", "/save", "/stats"]),
        ("/think o", ["on", "off"]),
        ("/think of", ["off"]),
        ("hello /s", []),
        ("/reset ", []),
    ],
)
def test_tab_completes_commands_and_choices(typed: str, completions: list[str]) -> None:
    found = CommandCompleter().get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in found] == completions


def test_tab_completes_paths(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text("")
    document = Document(f"/load {tmp_path}/ta")
    (found,) = CommandCompleter().get_completions(document, CompleteEvent())
    assert found.text == "lk.json"


def test_only_the_user_can_read_the_history(tmp_path: Path) -> None:
    path = history_path({"XDG_STATE_HOME": str(tmp_path)})
    warnings: list[str] = []
    history = InputHistory(path, warnings.append)
    for typed in ("one", "two\nlines", "odd \udce9", "x" * 10_001):
        history.store_string(typed)
    assert path.stat().st_mode & 0o777 == 0o600
    again = InputHistory(path, warnings.append)
    assert list(again.load_history_strings()) == ["odd ?", "two\nlines", "one"]
    assert warnings == []


def test_without_a_home_folder_the_history_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    warnings: list[str] = []
    history = open_history({}, warnings.append)
    assert isinstance(history, InMemoryHistory)
    assert warnings == ["the input history is not stored: Could not determine home directory."]


def test_an_unwritable_history_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "tinyllm").write_text("a file where a folder should be")
    warnings: list[str] = []
    history = InputHistory(history_path({"XDG_STATE_HOME": str(tmp_path)}), warnings.append)
    history.store_string("one")
    history.store_string("two")
    (warning,) = warnings
    assert "the input history is not stored" in warning


def test_a_relative_state_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    expected = Path("/home/user/.local/state/tinyllm/chat_history")
    assert history_path({"XDG_STATE_HOME": "state"}) == expected
    assert history_path({}) == expected


def test_a_long_paste_is_shortened_on_screen_only(tmp_path: Path) -> None:
    history = InputHistory(tmp_path / "history", pytest.fail)
    long = "a\n" * 6_000
    with create_pipe_input() as source:
        reader = make_reader(history, source)
        source.send_text(f"Sum up: \x1b[200~{long}\x1b[201~, please\r")
        assert reader.read() == f"Sum up: {long}, please"
        source.send_text("\x1b[A, again\r")  # the up arrow recalls the previous input
        assert reader.read() == f"Sum up: {long}, please, again"
        source.send_text("[paste 9: 12,000 characters]\r")
        assert reader.read() == "[paste 9: 12,000 characters]"
    assert history.get_strings()[0] == "Sum up: [paste 1: 12,000 characters], please"
    assert (tmp_path / "history").read_text() == ""


@pytest.mark.parametrize(
    ("error", "asked"), [(ChatError("too long"), 2), (RuntimeError("a rank is lost"), 1)]
)
def test_only_a_failed_computation_ends_the_lines_of_stdin(
    start: Start,
    scripted: str,
    make_screen: Callable[[], TextIO],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    asked: int,
) -> None:
    recorded = start(scripted)
    questions = []

    def ask(question: str, *, interruptible: bool) -> None:
        questions.append(question)
        raise error

    monkeypatch.setattr(recorded.session, "ask", ask)
    stdin = make_screen()
    stdin.write("one\ntwo\n")
    stdin.seek(0)
    if asked == 1:
        with pytest.raises(RuntimeError, match="a rank is lost"):
            repl.answer_lines(recorded.session, stdin)
    else:
        repl.answer_lines(recorded.session, stdin)
        assert recorded.err.getvalue().count("too long") == asked
    assert questions == ["one", "two"][:asked]


def test_lines_of_stdin_may_have_invalid_utf8(
    scripted: str,
    tmp_path: Path,
    make_screen: Callable[[], io.StringIO],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "stdin"
    path.write_bytes(b"caf\xe9?\nhi\n")
    out = make_screen()
    with path.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        repl.run(Settings(model=scripted), Terminal(out, make_screen(), {}))
    assert out.getvalue() == "It is so.\n" * 2
