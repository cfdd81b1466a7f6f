"""A chat template that is compiled in jinja2's sandbox and metered.

Import this module only before a template is rendered, because it imports jinja2, which takes 0.1 s.
"""

from collections.abc import Callable, Mapping
from types import CodeType

from jinja2 import Template, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from tinyllm_qwen.errors import CheckpointError, TemplateError
from tinyllm_qwen.text.sandbox.environment import TemplateEnvironment
from tinyllm_qwen.text.sandbox.functions import RefusalError
from tinyllm_qwen.text.sandbox.meter import TemplateMeter
from tinyllm_qwen.text.sandbox.nodes import MeteredNodes, convert_texts

MAX_MESSAGE = 1000
"""Largest length of the message of jinja2, or of the template itself, in an error."""


class SandboxedTemplate:
    """A compiled chat template, rendered as Hugging Face renders it.

    As with Hugging Face, blocks are trimmed, and `tojson` does not escape HTML. `break`, `continue`
    and `{% generation %}` are supported, and `raise_exception` and `strftime_now` are defined.

    A template cannot access Python's internals or change values. All work is metered: a template
    that never ends, or that needs gigabytes, is stopped with an error. Some filters and methods
    that prompts do not need and that cannot be metered are withheld, such as `urlize`, `wordwrap`
    and `encode`.

    Several threads may render at once. Each render has an environment with a meter of its own, so
    that a short conversation does not wait for a long one.
    """

    def __init__(
        self, source: str, origin: str, convert: Callable[[str], str] | None = None
    ) -> None:
        """Compile a template.

        Args:
            source: the text of the template.
            origin: the file of the template, for error messages.
            convert: converts every text of the template: its output and its string constants.

        Raises:
            CheckpointError: if the template is not valid jinja2.
        """
        self._origin = origin
        environment = TemplateEnvironment()
        try:
            tree = environment.parse(source)
            if convert is not None:
                convert_texts(tree, convert)
            MeteredNodes(environment).visit(tree)
            self._code: CodeType = environment.compile(tree, filename=origin)
        except TemplateSyntaxError as error:
            raise CheckpointError(
                f"{origin}: the chat template is broken at line {error.lineno}: "
                f"{_short(error.message)}"
            ) from None
        except (RecursionError, MemoryError, SyntaxError):
            raise CheckpointError(f"{origin}: the chat template is nested too deeply") from None
        except ValueError as error:  # a number of thousands of digits, or half a surrogate pair
            raise CheckpointError(
                f"{origin}: the chat template is broken: {_short(error)}"
            ) from None
        self._idle = [self._template(environment)]  # the environments that no thread uses now

    def render(self, variables: Mapping[str, object]) -> str:
        """Render the template with `variables`.

        Raises:
            TemplateError: if the template refuses the variables or fails on them.
            CheckpointError: if the template exceeds its limits, or attempts to access Python's
                internals.
        """
        try:
            environment, template = self._idle.pop()
        except IndexError:  # other threads use all environments: make one more, in 0.2 ms
            environment, template = self._template(TemplateEnvironment())
        try:
            return self._render(environment.meter, template, variables)
        finally:
            self._idle.append((environment, template))

    def _template(self, environment: TemplateEnvironment) -> tuple[TemplateEnvironment, Template]:
        """Return an environment, and the compiled template in this environment."""
        names = environment.make_globals(None)
        return environment, Template.from_code(environment, self._code, names)

    def _render(
        self, meter: TemplateMeter, template: Template, variables: Mapping[str, object]
    ) -> str:
        pieces: list[str] = []
        meter.start()
        try:
            for piece in template.generate(variables):
                pieces.append(meter.spend_on(piece))
        except RefusalError as error:
            raise TemplateError(_short(error)) from None
        except (SecurityError, RecursionError, MemoryError, OverflowError) as error:
            raise CheckpointError(
                f"{self._origin}: the chat template was stopped ({_short(error)}): do not trust"
                " this checkpoint, or replace its template"
            ) from None
        # A template is a program, which can raise any exception on unexpected data.
        except Exception as error:
            raise TemplateError(
                f"the chat template fails on these messages: {type(error).__name__}:"
                f" {_short(error)}: change the messages or the template"
            ) from error
        return "".join(pieces)


def _short(message: object) -> str:
    """Return a message as text, shortened: it may quote a text of the template or of a request."""
    text = str(message)
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."
