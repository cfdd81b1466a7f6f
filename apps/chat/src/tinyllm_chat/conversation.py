"""A conversation: a system message, questions and answers."""

from dataclasses import dataclass, field

from tinyllm_chat.errors import ChatError

Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer.

    Attributes:
        question: the text of the user.
        answer: the text of the model; None before it has answered, partial if it was interrupted.
        reasoning: the model's reasoning before the answer; may be empty.
    """

    question: str
    answer: str | None = None
    reasoning: str = ""


@dataclass
class Conversation:
    """Turns in order. The last turn may still lack its answer.

    Attributes:
        system: the system message, if there is one.
        turns: all turns, dropped ones included.
        dropped_turns: the number of oldest turns that no longer fit into the model's context.
    """

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    dropped_turns: int = 0

    def add_question(self, question: str) -> None:
        """Begin a turn with a question."""
        self.turns.append(Turn(question))

    def add_answer(self, text: str, reasoning: str = "") -> None:
        """Complete the last turn.

        Raises:
            ChatError: if there is no turn without an answer.
        """
        if not self.turns or self.turns[-1].answer is not None:
            raise ChatError("there is no question to answer")
        self.turns[-1] = Turn(self.turns[-1].question, text, reasoning)

    def pop_turn(self) -> Turn:
        """Remove and return the last turn.

        Raises:
            ChatError: if there are no turns.
        """
        if not self.turns:
            raise ChatError("there is no question yet")
        return self.turns.pop()

    def messages(self, first: int | None = None) -> list[Message]:
        """Return the messages for the chat template, without dropped turns.

        Reasoning is a separate field: the chat template decides which reasoning the model sees.

        Args:
            first: the index of the first turn to include; by default the first turn not dropped.
        """
        messages: list[Message] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for turn in self.turns[self.dropped_turns if first is None else first :]:
            messages.append({"role": "user", "content": turn.question})
            if turn.answer is not None:
                answer: Message = {"role": "assistant", "content": turn.answer}
                if turn.reasoning:
                    answer["reasoning_content"] = turn.reasoning
                messages.append(answer)
        return messages
