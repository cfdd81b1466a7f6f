"""What was said: a system message and turns."""

from dataclasses import dataclass, field

from tinyllm_chat.errors import ChatError

Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer.

    Attributes:
        question: what the user said.
        answer: what the model said, None while it has not; cut short if it was interrupted.
        reasoning: what the model thought before, perhaps nothing.
    """

    question: str
    answer: str | None = None
    reasoning: str = ""


@dataclass
class Conversation:
    """Turns in order, the last one perhaps without its answer.

    Attributes:
        system: the system message, if there is one.
        turns: everything that was said.
        forgotten: how many of the first turns the model no longer sees, for want of context.
    """

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    forgotten: int = 0

    def ask(self, question: str) -> None:
        """Begin a turn."""
        self.turns.append(Turn(question))

    def answer(self, text: str, reasoning: str = "") -> None:
        """End the turn that was begun.

        Raises:
            ChatError: if none was.
        """
        if not self.turns or self.turns[-1].answer is not None:
            raise ChatError("there is no question to answer")
        self.turns[-1] = Turn(self.turns[-1].question, text, reasoning)

    def retract(self) -> Turn:
        """Take the last turn back.

        Raises:
            ChatError: if there is none.
        """
        if not self.turns:
            raise ChatError("nothing has been said yet")
        turn = self.turns.pop()
        self.forgotten = min(self.forgotten, len(self.turns))
        return turn

    def reset(self) -> None:
        """Forget every turn; the system message stays."""
        self.turns.clear()
        self.forgotten = 0

    def messages(self, first: int | None = None) -> list[Message]:
        """The messages that a chat template renders, from turn `first` on.

        Thinking goes in a field of its own: the template decides which of it the model sees.
        """
        said: list[Message] = []
        if self.system is not None:
            said.append({"role": "system", "content": self.system})
        for turn in self.turns[self.forgotten if first is None else first :]:
            said.append({"role": "user", "content": turn.question})
            if turn.answer is not None:
                reply: Message = {"role": "assistant", "content": turn.answer}
                if turn.reasoning:
                    reply["reasoning_content"] = turn.reasoning
                said.append(reply)
        return said
