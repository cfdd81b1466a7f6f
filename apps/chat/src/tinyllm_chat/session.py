"""A session: a conversation, the assistant that answers it, and the terminal that shows it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import FrameType

from tinyllm_qwen.errors import DraftHeadError, MemoryShortageError
from tinyllm_qwen.format_bytes import format_bytes
from tinyllm_qwen.text.reasoning import Segment

from tinyllm_chat.answer import Answer
from tinyllm_chat.assistant import Assistant, load_assistant, show_notices
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.local.assistant import LocalAssistant
from tinyllm_chat.settings import Settings
from tinyllm_chat.summary import summary
from tinyllm_chat.terminal.output import Terminal
from tinyllm_chat.terminal.progress import ProgressBar


class Session:
    """The state that commands of the REPL act on.

    Attributes:
        terminal: the output.
        assistant: the model.
        conversation: all questions and answers.
        last_answer: the latest answer; None before the first one.
    """

    def __init__(self, assistant: Assistant, terminal: Terminal) -> None:
        """Begin a conversation."""
        self.terminal = terminal
        self.assistant = assistant
        self.conversation = Conversation(assistant.settings.system)
        self.last_answer: Answer | None = None

    def ask(self, question: str, *, interruptible: bool = True) -> Answer:
        """Ask a question, show the answer and add both to the conversation.

        If the user stops the answer before its first token, the question is removed again.

        Args:
            question: the text of the user.
            interruptible: True if Ctrl-C ends the answer and keeps its text so far. Otherwise
                Ctrl-C raises KeyboardInterrupt, which removes the question, as any error does.

        Raises:
            ChatError, TemplateError: as `LocalAssistant.reply`.
        """
        self.conversation.add_question(question)
        answer: Answer | None = None
        try:
            answer = self._reply(interruptible=interruptible)
        finally:
            if answer is None or answer.stats is None:
                self.conversation.pop_turn()
        if answer.stats is not None:
            self.conversation.add_answer(answer.text, answer.reasoning)
            self.conversation.dropped_turns += answer.dropped_turns
        self.last_answer = answer
        return answer

    def regenerate(self) -> Answer:
        """Ask the last question again, and replace its answer.

        Raises:
            ChatError: if there is no question.
            ChatError, TemplateError: as `ask`. The old answer stays.
        """
        turn = self.conversation.pop_turn()
        if self.assistant.is_greedy:
            self.terminal.notice(
                "decoding is greedy, so the answer will be the same: try --temperature 0.7"
            )
        answer: Answer | None = None
        try:
            answer = self.ask(turn.question)
        finally:
            if answer is None or answer.stats is None:
                self.conversation.turns.append(turn)
        return answer

    def switch_model(self, model: str) -> None:
        """Continue with another model. If loading fails, the current model stays.

        Raises:
            ChatError: if no model is named, several processes share the current model, or the
                memory is too little for a second model beside the current one.
            ChatError, CheckpointError, HubError, ValueError: as `load_assistant`.
        """
        if not model:
            raise ChatError("/model: expected a folder or the name of a repository")
        if isinstance(self.assistant, LocalAssistant) and self.assistant.model.num_ranks > 1:
            raise ChatError(
                "/model: several processes share the model: restart them with --model instead"
            )
        settings = self.assistant.settings
        # The new model may know no efforts, which must not refuse it.
        settings = replace(settings, model=model, revision=None, reasoning_effort=None)
        try:
            assistant = self._load_with_or_without_draft_head(settings)
        except MemoryShortageError as error:
            if (occupied := self._occupied_memory) < error.needed - error.free:
                raise  # the weights do not fit without the current model either
            raise ChatError(
                f"/model: the weights of {model} take {format_bytes(error.needed)} of memory, "
                f"{format_bytes(error.free)} are free beside the current model, which takes "
                f"{format_bytes(occupied)}: start chat again with --model {model}"
            ) from error
        assistant.answers, thinking = self.assistant.answers, self.assistant.thinking
        self.assistant = assistant  # frees the memory of the current model
        show_notices(assistant, self.terminal)
        if thinking is not None:
            try:
                self.assistant.think(thinking)
            except ChatError as error:
                self.terminal.notice(str(error))
                self.assistant.think("on")
        # The context of the new model may be longer, so all turns are tried again.
        self.conversation.dropped_turns = 0

    def _load_with_or_without_draft_head(self, settings: Settings) -> Assistant:
        try:
            return load_assistant(settings, self.terminal)
        except DraftHeadError as error:
            self.terminal.notice(f"--draft-model is left out: {error}")
            settings = replace(settings, draft_model=None, num_speculative_tokens=None)
            return load_assistant(settings, self.terminal)

    def start(self, conversation: Conversation) -> None:
        """Continue with another conversation."""
        self.conversation = conversation
        self.last_answer = None

    @property
    def _occupied_memory(self) -> int:
        """The bytes of the current model and its caches in this process."""
        current = self.assistant
        if not isinstance(current, LocalAssistant):
            return 0
        return current.model.nbytes + current.cache.nbytes

    def _reply(self, *, interruptible: bool) -> Answer:
        """Show the answer to the last question, then notices and a summary."""
        bar = ProgressBar("reading the prompt", self.terminal)

        def show(segment: Segment) -> None:
            bar.close()
            write = self.terminal.reasoning if segment.thinking else self.terminal.answer
            write(segment.text)

        at_once = self.assistant.settings.server is not None
        stopping = interrupt_flag(at_once=at_once) if interruptible else nullcontext(lambda: False)
        with bar, stopping as should_stop:
            answer = self.assistant.reply(
                self.conversation, show, on_prefill=bar, should_stop=should_stop
            )
        self.terminal.finish_line()
        for notice in self._notices(answer):
            self.terminal.notice(notice)
        self.terminal.info(summary(self.assistant, answer))
        return answer

    def _notices(self, answer: Answer) -> list[str]:
        """Return notices about dropped turns and an answer that did not end by itself."""
        notices = []
        if answer.dropped_turns and answer.stats is not None:
            turns = "turn was" if answer.dropped_turns == 1 else "turns were"
            notices.append(
                f"the context of {self.assistant.max_model_len:,} tokens was full: "
                f"the oldest {answer.dropped_turns} {turns} left out"
            )
        if answer.finish_reason == "interrupted":
            kept = "the question is removed" if answer.stats is None else "the text so far is kept"
            notices.append(f"stopped; {kept}")
        if answer.finish_reason == "length" and answer.stats is not None:
            settings, generated = self.assistant.settings, answer.stats.generated_tokens
            if settings.server is not None and settings.max_tokens is None:
                reason = "the limit of the server"
            elif generated >= settings.answer_tokens:
                reason = f"--max-tokens {settings.answer_tokens}"
            else:
                reason = "the context is full"
            notices.append(f"the answer was cut off after {generated:,} tokens ({reason})")
        if answer.finish_reason not in ("stop", "length", "interrupted"):
            notices.append(f"the server ended the answer with {answer.finish_reason!a}")
        return notices


@contextmanager
def interrupt_flag(*, at_once: bool) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag, which the yielded function returns. A second Ctrl-C interrupts.

    An exception at an arbitrary point could leave the cache of one layer a token ahead of another.
    With `at_once` the first Ctrl-C interrupts too: a server may be silent for minutes, and there
    are no caches here.
    """
    requested = False

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        nonlocal requested
        interrupts, requested = requested or at_once, True
        if interrupts:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: requested
    finally:
        signal.signal(signal.SIGINT, previous)
