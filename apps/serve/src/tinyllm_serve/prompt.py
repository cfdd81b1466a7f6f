"""The prompt that a conversation comes to."""

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllm_qwen import Tokenizer
from tinyllm_qwen.text.reasoning import CLOSE, OPEN

from tinyllm_serve.api_error import ApiError
from tinyllm_serve.schemas.messages import Message
from tinyllm_serve.schemas.template_variables import TemplateVariables
from tinyllm_serve.schemas.tools import Tool


@dataclass(frozen=True)
class Prompt:
    """Tokens, and what is known of the answer that follows them.

    Attributes:
        tokens: what the model is given.
        opened: whether the prompt ends within the thinking.
        thinks: whether the answer begins with thinking.
    """

    tokens: list[int]
    opened: bool
    thinks: bool

    @property
    def before_answer(self) -> str | None:
        """The text that comes before the answer proper, where there is one."""
        return CLOSE if self.thinks else None

    @property
    def opening(self) -> str:
        """How the thinking begins, where the model has yet to begin it."""
        return OPEN if self.thinks and not self.opened else ""

    @classmethod
    def of_chat(
        cls,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        variables: TemplateVariables,
    ) -> "Prompt":
        """Render a conversation with the model's chat template.

        Args:
            tokenizer: the model's.
            messages: the conversation.
            tools: functions that may be called.
            variables: further variables of the template.

        Raises:
            TemplateError: if the template refuses the conversation, or there is none.
            ApiError: 400 if it has no place for tools.
        """
        turns = [message.template_form for message in messages]
        offered = [tool.template_form for tool in tools] or None

        def render(tools: list[dict[str, object]] | None, thinking: bool | None) -> str:
            return tokenizer.render_chat(
                turns,
                tools=tools,
                add_generation_prompt=True,
                enable_thinking=thinking,
                **variables.others,
            )

        thinking = variables.enable_thinking
        text = render(offered, thinking)
        if offered and text == render(None, thinking):
            raise ApiError(
                400, "tools: this model's chat template has no place for them", param="tools"
            )
        opened = text.rstrip().endswith(OPEN)
        # A template that can forestall the thinking belongs to a model that begins with it.
        hybrid = thinking is not False and text != render(offered, False)
        return cls(tokenizer.encode(text), opened, opened or hybrid)
