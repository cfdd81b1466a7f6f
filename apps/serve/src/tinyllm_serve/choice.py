"""An answer, put together from its steps."""

from dataclasses import dataclass, field

from tinyllm_engine import Output, Usage

from tinyllm_serve.generation import Ending, Step
from tinyllm_serve.parts import Content, Reasoning, ToolCall


@dataclass
class Choice:
    """An answer so far.

    Attributes:
        content: its text.
        reasoning: the thinking before it.
        calls: functions called.
        outputs: its tokens.
        reasoning_tokens: how many of them are thinking.
        ending: why it ended; None until it has.
    """

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    reasoning_tokens: int = 0
    ending: Ending | None = None

    def add(self, step: Step) -> None:
        """Take the next step."""
        for part in step.parts:
            match part:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case ToolCall():
                    self.calls.append(part)
        self.outputs.append(step.output)
        self.reasoning_tokens = step.reasoning_tokens
        self.ending = step.finish_reason or self.ending

    @property
    def usage(self) -> Usage:
        """What it has cost."""
        return self.outputs[-1].usage
