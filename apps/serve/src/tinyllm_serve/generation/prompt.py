"""The prompt of a conversation."""

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllm_qwen import Tokenizer
from tinyllm_qwen.text.reasoning import CLOSE, OPEN

from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.chat import TemplateVariables
from tinyllm_serve.protocol.messages import Message
from tinyllm_serve.protocol.tools import Tool


@dataclass(frozen=True)
class Prompt:
    """The tokens of a conversation, and the reasoning that its answer begins with.

    Attributes:
        tokens: the prompt.
        opened: True if the prompt ends inside the reasoning.
        thinks: True if the answer begins with reasoning.
    """

    tokens: list[int]
    opened: bool
    thinks: bool

    @property
    def before_answer(self) -> str | None:
        """The text that ends the reasoning; None without reasoning."""
        return CLOSE if self.thinks else None

    @property
    def opening(self) -> str:
        """The text that begins the reasoning, if the model has yet to write it."""
        return OPEN if self.thinks and not self.opened else ""

    @classmethod
    def of_chat(
        cls,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        variables: TemplateVariables,
    ) -> "Prompt":
        """Render a conversation and its tools with the model's chat template, and tokenize them.

        Raises:
            TemplateError: if there is no template, or the template refuses the conversation.
            ApiError: 400 if the template ignores tools.
        """
        turns = [message.template_form for message in messages]
        offered = [tool.template_form for tool in tools] or None

        def render(tools: list[dict[str, object]] | None, thinking: bool | None) -> str:
            return tokenizer.render_chat(
                turns,
                tools=tools,
                add_generation_prompt=True,
                enable_thinking=thinking,
                **variables.extra,
            )

        thinking = variables.enable_thinking
        text = render(offered, thinking)
        if offered and text == render(None, thinking):
            raise ApiError(
                400, "tools: expected none, this model's chat template ignores them", param="tools"
            )
        opened = text.rstrip().endswith(OPEN)
        # A template that can switch reasoning off belongs to a model that reasons by default.
        hybrid = thinking is not False and text != render(offered, False)
        return cls(tokenizer.encode(text), opened, opened or hybrid)
