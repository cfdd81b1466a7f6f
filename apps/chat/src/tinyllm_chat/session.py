"""A conversation with a model, on a terminal."""

from collections.abc import Callable
from dataclasses import replace

from tinyllm_qwen.parallel.member import Member
from tinyllm_qwen.text.reasoning import Segment

from tinyllm_chat.answer import Answer
from tinyllm_chat.answerer import Answerer
from tinyllm_chat.assistant import Assistant
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.interrupt import Interrupt
from tinyllm_chat.progress import ProgressBar
from tinyllm_chat.remote_assistant import RemoteAssistant
from tinyllm_chat.server_connection import ServerConnection
from tinyllm_chat.settings import Settings
from tinyllm_chat.summary import summary
from tinyllm_chat.terminal import Terminal


def load_assistant(
    settings: Settings, terminal: Terminal, member: Member | None = None
) -> Answerer:
    """Load the model, or find it on its server, and say what is not as one might think.

    Args:
        settings: what was asked for.
        terminal: where to say it.
        member: this process, rank 0 of several that share the model.

    Raises:
        ChatError, CheckpointError, HubError, ValueError: as `Assistant.load`.
    """
    assistant: Answerer
    if settings.server is not None:
        connection = ServerConnection(settings.server, settings.api_key)
        assistant = RemoteAssistant(settings, connection)
    else:
        with ProgressBar(f"loading {settings.model}", terminal) as bar:
            assistant = Assistant.load(settings, bar, member)
    for notice in assistant.notices():
        terminal.notice(notice)
    return assistant


class Session:
    """What the commands of the REPL act on.

    Attributes:
        terminal: where to write.
        assistant: the model.
        conversation: what was said.
        last: the latest answer, if there is one.
    """

    def __init__(self, assistant: Answerer, terminal: Terminal) -> None:
        """Begin a conversation."""
        self.terminal = terminal
        self.assistant = assistant
        self.conversation = Conversation(assistant.settings.system)
        self.last: Answer | None = None

    def ask(self, question: str, *, interruptible: bool = True) -> Answer:
        """Put a question, show the answer and remember both.

        A question that was stopped before the first token of its answer is taken back.

        Args:
            question: what the user says.
            interruptible: whether Ctrl-C ends the answer and keeps what was said. Without that it
                raises KeyboardInterrupt, and then, as after any error, the question was not put.

        Raises:
            ChatError, TemplateError: as `Assistant.reply`.
        """
        self.conversation.ask(question)
        answer: Answer | None = None
        try:
            answer = self._reply(interruptible=interruptible)
        finally:
            if answer is None or answer.stats is None:
                self.conversation.retract()
        if answer.stats is not None:
            self.conversation.answer(answer.text, answer.reasoning)
        self.last = answer
        return answer

    def regenerate(self) -> Answer:
        """Put the last question again, in place of its answer.

        Raises:
            ChatError: if there is no question; otherwise as `ask`, and the answer stays.
        """
        forgotten = self.conversation.forgotten
        turn = self.conversation.retract()
        if self.assistant.is_greedy:
            self.terminal.notice("decoding is greedy and gives the same again: try --temp 0.7")
        answer: Answer | None = None
        try:
            answer = self.ask(turn.question)
        finally:
            if answer is None or answer.stats is None:
                self.conversation.turns.append(turn)
                self.conversation.forgotten = forgotten
        return answer

    def switch(self, model: str) -> None:
        """Go on with another model; if it cannot be loaded, the one that is there stays.

        Raises:
            CheckpointError, HubError, ValueError: as `Assistant.load`.
        """
        if not model:
            raise ChatError("/model: expected a folder or the name of a repository")
        if isinstance(self.assistant, Assistant) and self.assistant.model.num_ranks > 1:
            raise ChatError("/model: several processes share this one; start them with --model")
        settings = replace(self.assistant.settings, model=model, revision=None)
        think = self.assistant.think
        self.assistant = load_assistant(settings, self.terminal)
        self.assistant.think = think
        # The other model's context may take more of what was said.
        self.conversation.forgotten = 0

    def restart(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation = conversation
        self.last = None

    def _reply(self, *, interruptible: bool) -> Answer:
        """Show the answer to the last question, and what it took."""
        bar = ProgressBar("reading the prompt", self.terminal)

        def show(segment: Segment) -> None:
            bar.close()
            write = self.terminal.thought if segment.thinking else self.terminal.answer
            write(segment.text)

        def reply(stopped: Callable[[], bool]) -> Answer:
            return self.assistant.reply(self.conversation, show, on_prefill=bar, stopped=stopped)

        with bar:
            if interruptible:
                with Interrupt() as interrupt:
                    answer = reply(lambda: interrupt.requested)
            else:
                answer = reply(lambda: False)
        self.terminal.finish_line()
        for notice in self._notices(answer):
            self.terminal.notice(notice)
        self.terminal.aside(summary(self.assistant, answer))
        return answer

    def _notices(self, answer: Answer) -> list[str]:
        """What a user should know about an answer beside what it says."""
        notices = []
        if answer.forgotten:
            turns = "turn was" if answer.forgotten == 1 else "turns were"
            notices.append(
                f"the context of {self.assistant.window:,} tokens was full: "
                f"the oldest {answer.forgotten} {turns} left out"
            )
        if answer.finish_reason == "interrupted":
            taken_back = answer.stats is None
            kept = "the question is taken back" if taken_back else "what was said is kept"
            notices.append(f"stopped; {kept}")
        if answer.finish_reason == "length" and answer.stats is not None:
            generated, bound = answer.stats.generated_tokens, self.assistant.settings.max_tokens
            why = f"--max-tokens {bound}" if generated >= bound else "the context is full"
            notices.append(f"the answer was cut off after {generated:,} tokens ({why})")
        return notices
