"""The served model: its engine, its state, and its metrics."""

import asyncio
import gc
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields

from pydantic import ValidationError
from tinyllm_cli.messages import UsageError
from tinyllm_engine import AsyncEngine, Engine, EngineSettings, MemorySettingError
from tinyllm_kernels import BackendChoice
from tinyllm_qwen import CheckpointError, GenerationConfig, Qwen, Tokenizer, load
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.config.generation import FILE_NAME
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_serve.errors import ServeError
from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.rate_limiter import RateLimiter
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.options import json_option
from tinyllm_serve.protocol.chat import TemplateVariables
from tinyllm_serve.ranks.group import CLOSE_TIMEOUT, Group
from tinyllm_serve.served_model import Fact, ServedModel, State
from tinyllm_serve.settings import DRAFT_HEAD, Settings

_log = logging.getLogger(__name__)


class Service(ServedModel):
    """A model that all endpoints share.

    Attributes:
        engine: the model, and the requests in progress.
        defaults: the sampling parameters of the checkpoint and of the operator.
        template_defaults: the operator's variables of the chat template.
        root: the model as the operator has named it.
        backend: the chosen backend and dtype; None before the model is loaded.
        page_tokens: the number of tokens that the pages hold; 0 before the model is loaded.
        created: the time of the start, in seconds since 1970.
        rate_limiter: the rate limit of each client's requests and answers.
    """

    def __init__(
        self, settings: Settings, group: Group | None = None, *, root: str | None = None
    ) -> None:
        """Prepare; `start` loads the model.

        With a group, this process is rank 0. Without a group, it has the whole model. `root` is the
        model as the operator has named it, if that is not `settings.model`.
        """
        self.settings = settings
        self.root = settings.model if root is None else root
        self._group = group
        self.close_timeout = None if group is None else CLOSE_TIMEOUT
        # A failed step does not know which rank was lost. The control channel to that rank does.
        failing = None if group is None else group.member.await_loss
        self.engine = AsyncEngine(self._make, failing)
        self.defaults = GenerationConfig()
        self.backend: BackendChoice | None = None
        self.page_tokens = 0
        self._weight_bytes = 0
        self._generation = generation_overrides(settings)
        self.template_defaults = template_defaults(settings)
        self.created = int(time.time())
        self.rate_limiter = RateLimiter()
        self._requests = 0
        self._no_requests = asyncio.Event()
        self._no_requests.set()
        self.metrics = Metrics(
            lambda: None if self.state == "loading" else self.engine.stats,
            enable_prefix_caching=settings.enable_prefix_caching,
        )

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self.settings.model_names[0]

    @property
    def state(self) -> State:
        """The state; "failed" once the engine has ended by itself."""
        failed = self._state == "ready" and self.engine.closed is not None
        return "failed" if failed else self._state

    @property
    def failure(self) -> str:
        """The reason why the engine has failed."""
        return self.engine.closed or super().failure

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    @property
    def context_length(self) -> int:
        """The context length of the model, or --max-model-len, in tokens."""
        longest = self.engine.config.context_length
        return min(longest, self.settings.max_model_len or longest)

    @property
    def max_model_len(self) -> int:
        """The most tokens of a prompt and its answer, within the context and the pages."""
        return min(self.context_length, self.page_tokens)

    @property
    def max_prompt(self) -> int:
        """The most tokens of a prompt, which leave one token for the answer."""
        return self.max_model_len - 1

    async def start(self) -> None:
        """Load the model, then accept requests; raises the errors of `tinyllm_qwen.load`."""
        await self.engine.start()
        # Python's collector would search the 100,000 objects of the start each time, and stop all
        # threads for 0.1 s.
        gc.collect()
        gc.freeze()
        self._state = "ready"
        if self._group is not None:
            self._group.on_loss.engine = self.engine

    def facts(self) -> Mapping[str, Fact]:
        """Return the backend, the numbers of pages and slots, and this process's weight bytes."""
        if self.backend is None:
            return {}
        stats = self.engine.stats
        return {
            "ops": self.backend.ops.name,
            "device": self.backend.device,
            "note": self.backend.note or None,
            "pages": stats.pages_total,
            "recurrent_states": stats.states_total or None,
            "snapshots": stats.snapshots_total if stats.states_total else None,
            "weight_bytes": self._weight_bytes,
            "ranks": None if self._group is None else self._group.member.ranks.size,
            "draft_model": self.settings.draft_model,
            "num_speculative_tokens": self.settings.num_draft_tokens or None,
        }

    async def failed(self) -> str:
        """Wait until the engine has failed for good. Without a group, wait forever."""
        if self._group is not None:
            await self.engine.ended()
            return self.failure
        return await super().failed()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request in progress, for which `finish` waits.

        Requests that come after the state "ready" are not counted, because they are refused.
        """
        if self.state != "ready":
            yield
            return
        self._requests += 1
        self._no_requests.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._no_requests.set()

    async def finish(self) -> None:
        """Wait until the requests in progress have ended.

        Their texts may still be encoded, and their answers may wait for the rate limiter. The
        engine therefore accepts requests until then.
        """
        await self._no_requests.wait()
        await self.engine.drain()

    async def close(self) -> None:
        """End the engine. An engine that is loading, or has failed, ends with the process."""
        if self.state not in ("loading", "failed"):
            await self.engine.close()

    async def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus's format."""
        return self.metrics.text()

    def check_model(self, name: str | None) -> None:
        """Check that a request is for the served model, by a name of it or as given to --model.

        Raises:
            ApiError: 404, as from OpenAI's API.
        """
        names = self.settings.model_names
        if name is not None and name not in (*names, self.root):
            expected = " or ".join(map(repr, names))
            raise ApiError(
                404,
                f"model: expected {expected}, the served model, got {name[:200]!r}",
                param="model",
                code="model_not_found",
            )

    def _make(self) -> Engine:
        """Load the model, in the thread that will own it."""
        settings = self.settings
        self.backend = BackendChoice.choose(settings.ops, settings.dtype)
        folder = resolve(settings.model, settings.revision)
        self.defaults = GenerationConfig.from_folder(folder, self._generation)
        if not (self._generation or (folder / FILE_NAME).exists()):
            _log.warning(
                "the model has no %s: answers are greedy, unless a request has a temperature or "
                "--override-generation-config sets one",
                FILE_NAME,
            )
        self.defaults.sampling()  # raises here, and not at the first request, if out of range
        model: LanguageModel
        ops, dtype = self.backend.ops, self.backend.dtype
        uses_draft_head = settings.draft_model == DRAFT_HEAD
        if self._group is None:
            model, tokenizer = load(folder, ops=ops, dtype=dtype, draft_head=uses_draft_head)
        elif uses_draft_head:
            raise ServeError(
                "--draft-model mtp: expected one process, got several ranks: leave the option "
                "out, or name a draft model"
            )
        else:
            part, tokenizer = self._group.member.load(folder, ops=ops, dtype=dtype)
            model = self._group.member.drive(part)
        for notice in (*model.config.notices, *tokenizer.notices):
            _log.warning("%s", notice)
        self._weight_bytes = model.nbytes
        longest = model.config.context_length
        context = settings.max_model_len or longest
        if context > longest:
            raise ServeError(
                f"--max-model-len: expected at most {longest}, the model's context, got {context}"
            )
        if settings.snapshot_memory is not None and not model.state_bytes():
            _log.warning("--snapshot-memory has no effect: the model has no recurrent layers")
        draft_model = None
        if settings.draft_model is not None and not uses_draft_head:
            draft_model = load_draft_model(settings.draft_model, tokenizer, self.backend)
        try:
            engine = Engine(model, tokenizer, _engine_settings(settings), draft_model=draft_model)
        except MemorySettingError as error:
            raise _memory_error(error, settings) from error
        self.page_tokens = engine.stats.pages_total * settings.page_size
        limit = settings.max_tokens
        if self.page_tokens < min(limit or context, context):
            _log.warning(
                "the pages hold %d tokens, and %s is %d: answers may end earlier, unless "
                "--kv-cache-memory is larger",
                self.page_tokens,
                "--max-tokens" if limit else "the context",
                limit or context,
            )
        return engine


def load_draft_model(name: str, tokenizer: Tokenizer, backend: BackendChoice) -> Qwen:
    """Load a draft model with the backend and dtype of the served model; check its tokens.

    Raises:
        ServeError: if token ids of the draft model mean other text than in `tokenizer`.
        CheckpointError, HubError, ValueError: if the draft model cannot be loaded.
    """
    draft_model, own = load(name, ops=backend.ops, dtype=backend.dtype)
    if own.vocab_size != tokenizer.vocab_size:
        raise ServeError(
            f"--draft-model: expected the {tokenizer.vocab_size} tokens of the model, "
            f"{name} has {own.vocab_size}: take a smaller model of the same family"
        )
    for token in range(tokenizer.vocab_size):
        expected, actual = tokenizer.token_bytes(token), own.token_bytes(token)
        if expected != actual:
            raise ServeError(
                f"--draft-model: expected the tokens of the model, but {token} is {actual!r} in "
                f"{name} and not {expected!r}: take a smaller model of the same family"
            )
    return draft_model


def _engine_settings(settings: Settings) -> EngineSettings:
    return EngineSettings(
        page_size=settings.page_size,
        max_model_len=settings.max_model_len,
        kv_cache_memory_bytes=_bytes(settings.kv_cache_memory),
        max_num_seqs=settings.max_num_seqs,
        max_waiting=settings.max_waiting,
        kv_bits=settings.kv_bits,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        step_seconds=settings.step_seconds,
        enable_prefix_caching=settings.enable_prefix_caching,
        prefix_cache_memory_bytes=_bytes(settings.prefix_cache_memory),
        snapshot_memory_bytes=_bytes(settings.snapshot_memory),
        prefix_cache_path=settings.prefix_cache_path,
        num_speculative_tokens=settings.num_draft_tokens,
    )


def generation_overrides(settings: Settings) -> dict[str, object]:
    """Return the fields of --override-generation-config.

    Raises:
        UsageError: if a field is unknown, or its value is not valid.
    """
    name = "override-generation-config"
    values = json_option(name, settings.override_generation_config)
    known = [each.name for each in fields(GenerationConfig)]
    for field in values.keys() - set(known):
        remedy = "use --max-tokens" if field in ("max_new_tokens", "max_tokens") else "leave it out"
        raise UsageError(f"--{name}: expected {', '.join(known)}, got {field}: {remedy}")
    try:
        GenerationConfig.from_values(values, f"--{name}")
    except CheckpointError as error:
        raise UsageError(str(error)) from error
    return values


def template_defaults(settings: Settings) -> TemplateVariables:
    """Return the variables of --default-chat-template-kwargs.

    Raises:
        UsageError: if a name or a value is not valid.
    """
    name = "default-chat-template-kwargs"
    try:
        return TemplateVariables.model_validate(
            json_option(name, settings.default_chat_template_kwargs)
        )
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--{name}: {reason}") from error


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * 1e9)


def _memory_error(error: MemorySettingError, settings: Settings) -> ServeError:
    """Return the error of the engine with the option of the command line, and its unit."""
    least = _gigabytes(math.ceil(error.least / 1000))
    if error.setting == "snapshot_memory_bytes" and error.most is not None:
        most = _gigabytes(error.most // 1000)
        return ServeError(
            f"--snapshot-memory: expected 0, or from {least} to {most} GB for {error.contents}, "
            f"got {settings.snapshot_memory}: change it, or give more --kv-cache-memory"
        )
    if error.most is not None:
        return ServeError(
            f"--kv-cache-memory: expected at most {_gigabytes(error.most // 1000)} GB for "
            f"{error.contents}, got {settings.kv_cache_memory}: give less"
        )
    if settings.kv_cache_memory is None:
        return ServeError(
            f"expected at least {least} GB of free memory for {error.contents}, got "
            f"{_gigabytes(error.got // 1000)}: end other programs, set --kv-bits 4, or take a "
            "smaller model"
        )
    return ServeError(
        f"--kv-cache-memory: expected at least {least} GB for {error.contents}, "
        f"got {settings.kv_cache_memory}: give more"
    )


def _gigabytes(kilobytes: int) -> str:
    return f"{kilobytes / 1e6:.6f}".rstrip("0").removesuffix(".")
