"""New requests: their checks, and their state before the first step."""

from types import UnionType

from tinyllm_qwen import Sampler, Tokenizer
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.text.output import OutputProcessor

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.errors import EngineFullError, PromptTooLongError, RequestError
from tinyllm_engine.grammar.compiler import CompiledGrammar
from tinyllm_engine.grammar.grammar import Grammar
from tinyllm_engine.grammar.worker import GrammarWorker
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import Request, RequestState, check_prompt


def check_type(name: str, value: object, kind: type | UnionType, expected: str) -> None:
    """Raise RequestError unless an argument of `Engine` has a type."""
    if not isinstance(value, kind):
        raise RequestError(f"{name}: expected {expected}, got {type(value).__name__}")


def check_state(state: object) -> None:
    """Raise RequestError unless the argument of a method of `Engine` is the state of a request."""
    check_type("request", state, RequestState, "the RequestState that `add` returned")


class RequestFactory:
    """Checks the requests to an engine, and makes their states."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        block_manager: BlockManager,
        grammars: GrammarWorker,
        settings: EngineSettings,
    ) -> None:
        """Make the factory of an engine from its parts."""
        self._model = model
        self._tokenizer = tokenizer
        self._block_manager = block_manager
        self._grammars = grammars
        longest = model.config.context_length
        self._context_length = min(longest, settings.max_model_len or longest)

    def check(self, request: Request) -> None:
        """Check that the engine can serve a request.

        Raises:
            RequestError: if it is no `Request`, the model cannot compute the prompt, or the pages
                cannot hold it and one token more.
        """
        check_type("request", request, Request, "a Request of token ids")
        length, capacity = len(request.prompt), self._capacity
        check_prompt(request.prompt, self._model.config)
        # An embedding too needs memory for one token more: if all its pages are in the prefix
        # cache, the last one is copied.
        if length > capacity - 1:
            raise PromptTooLongError(
                f"prompt: expected at most {capacity - 1} tokens, the limit of max_model_len and "
                f"of the engine's pages, got {length}: shorten it, or raise the limit; this "
                f"model's maximum context length is {capacity} tokens"
            )

    def make(self, request: Request, number: int, grammar: CompiledGrammar | None) -> RequestState:
        """Make the state of a request, with its sampler and its grammar.

        Args:
            request: the request, which was checked.
            number: the number of earlier requests.
            grammar: the compiled form of the request's grammar; None to compile it here.

        Raises:
            RequestError: if the grammar, a stop string or a sampling parameter is not valid.
            EngineFullError: if the memory for grammars is full.
        """
        model = self._model
        expected = "the result of `grammars.compile`, or None with Request.grammar"
        check_type("grammar", grammar, CompiledGrammar | None, expected)
        try:
            if grammar is None and request.grammar is not None:
                grammar = self._compile(request.grammar, request.tenant)
            vocab_size = model.config.vocab_size
            sampler = Sampler(request.sampling, vocab_size, model.ops, request.prompt)
            return RequestState(
                request,
                number,
                self._max_tokens(request),
                sampler,
                OutputProcessor(self._tokenizer, request.stop, ignore_end=request.ignore_end),
                None if grammar is None else grammar.constraint(),
            )
        except ValueError as error:
            raise RequestError(str(error)) from error

    def _compile(self, grammar: Grammar, tenant: str) -> CompiledGrammar:
        try:
            return self._grammars.compile(grammar, tenant)
        except EngineFullError as error:
            raise error.with_remedy("call step() until a request has ended") from None

    @property
    def _capacity(self) -> int:
        """The most tokens of a prompt and its answer: the context, or what all pages hold."""
        in_pages = self._block_manager.num_pages * self._block_manager.page_size
        return min(self._context_length, in_pages)

    def _max_tokens(self, request: Request) -> int:
        """Return the most tokens to generate; 0 for an embedding."""
        if request.embedding:
            return 0
        return min(request.max_tokens, self._capacity - len(request.prompt))
