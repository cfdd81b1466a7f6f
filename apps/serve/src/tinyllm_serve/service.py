"""The model that is served, and whether it is."""

import asyncio
import time
from collections.abc import Mapping

from tinyllm_engine import AsyncEngine, Engine, EngineSettings
from tinyllm_kernels import Arithmetic
from tinyllm_qwen import GenerationConfig, Tokenizer, load
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_serve.api_error import ApiError, closing
from tinyllm_serve.draft_model import load_draft_model
from tinyllm_serve.group import Group
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.served import Fact, State
from tinyllm_serve.settings import Settings


class Service:
    """What all endpoints share.

    Attributes:
        settings: what was asked for.
        engine: the model, and the requests that it works on.
        metrics: what is counted.
        advice: the checkpoint's own sampling.
        arithmetic: what computes; None before it was chosen.
        created: when the server began, in seconds since 1970.
    """

    def __init__(self, settings: Settings, group: Group | None = None) -> None:
        """Prepare; `start` loads the model.

        Args:
            settings: what was asked for.
            group: the processes that share the model, of which this one is rank 0; None if it has
                all of it.
        """
        self.settings = settings
        self._group = group
        # A failed step does not know which rank was lost. The control channel to it does.
        failing = None if group is None else group.member.await_loss
        self.engine = AsyncEngine(self._make, failing)
        self.advice = GenerationConfig()
        self.arithmetic: Arithmetic | None = None
        self._weight_bytes = 0
        self._state: State = "loading"
        self.created = int(time.time())
        self.metrics = Metrics(lambda: None if self.state == "loading" else self.engine.stats)

    @property
    def name(self) -> str:
        """How clients call the model."""
        return self.settings.served_name

    @property
    def state(self) -> State:
        """Requests are taken only when it is "ready"; once it is "failed", it stays so."""
        failed = self._state == "ready" and self.engine.closed is not None
        return "failed" if failed else self._state

    @property
    def ranks(self) -> int | None:
        """Number of processes that share the model; None if this one has all of it."""
        return None if self._group is None else self._group.member.ranks.size

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its answer at most."""
        return self.engine.config.context_length

    async def start(self) -> None:
        """Load the model.

        Raises:
            BackendError, CheckpointError, HubError, ValueError: if it cannot be.
        """
        await self.engine.start()
        self._state = "ready"
        if self._group is not None:
            self._group.loss.engine = self.engine

    def facts(self) -> Mapping[str, Fact]:
        """What computes, how many pages there are, and the weights that this process has."""
        if self.arithmetic is None:
            return {}
        return {
            "ops": self.arithmetic.ops.name,
            "device": self.arithmetic.device,
            "note": self.arithmetic.note or None,
            "pages": self.engine.stats.pages_total,
            "weight_bytes": self._weight_bytes,
            "ranks": self.ranks,
            "draft_model": self.settings.draft_model,
            "speculation": self.settings.guesses or None,
        }

    async def failed(self) -> str:
        """Wait until the engine has failed for good, which that of a whole model never does."""
        if self._group is None:
            await asyncio.Event().wait()
        await self.engine.ended()
        return self.engine.closed or "the engine has failed"

    def drain(self) -> None:
        """Take no new requests."""
        self._state = "draining"

    async def finish(self) -> None:
        """Wait until those under way have ended."""
        await self.engine.drain()

    async def close(self) -> None:
        """End the engine; one that is still loading, or has failed, ends with the process."""
        if self.state not in ("loading", "failed"):
            await self.engine.close()

    async def metrics_text(self) -> bytes:
        """All counts in Prometheus's format."""
        return self.metrics.text()

    def check_ready(self) -> None:
        """Refuse a request, unless requests are taken.

        Raises:
            ApiError: 503 while loading, while draining, and once the engine has failed.
        """
        self.check_alive()
        if self.state == "loading":
            raise closing("the model is still being loaded")
        if self.state == "draining":
            raise closing("the server is shutting down")

    def check_alive(self) -> None:
        """Refuse a request, if none will be taken until somebody starts the process again.

        Raises:
            ApiError: 503 once the engine has failed.
        """
        if self.state == "failed":
            raise closing(self.engine.closed or "the engine has failed")

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model.

        Raises:
            ApiError: 404, as OpenAI's own.
        """
        if name not in (None, self.name):
            raise ApiError(
                404,
                f"model: {name[:200]!r} is not served here, {self.name!r} is",
                param="model",
                code="model_not_found",
            )

    def _make(self) -> Engine:
        """Load the model; in the thread that will own it."""
        settings = self.settings
        self.arithmetic = Arithmetic.choose(settings.ops, settings.dtype)
        folder = resolve(settings.model, settings.revision)
        self.advice = GenerationConfig.from_folder(folder)
        self.advice.sampling()  # out of range, it fails here and not at the first request
        model: LanguageModel
        ops, dtype = self.arithmetic.ops, self.arithmetic.dtype
        if self._group is None:
            model, tokenizer = load(folder, ops=ops, dtype=dtype)
        else:
            part, tokenizer = self._group.member.load(folder, ops=ops, dtype=dtype)
            model = self._group.member.drive(part)
        self._weight_bytes = model.nbytes
        draft = None
        if settings.draft_model is not None:
            draft = load_draft_model(settings.draft_model, tokenizer, self.arithmetic)
        return Engine(
            model,
            tokenizer,
            EngineSettings(
                page_size=settings.page_size,
                memory_bytes=settings.memory,
                max_running=settings.max_running,
                max_waiting=settings.max_waiting,
                kv_bits=settings.kv_bits,
                prefill_tokens=settings.prefill_tokens,
                step_seconds=settings.step_seconds,
                prefix_cache=settings.prefix_cache,
                prefix_cache_bytes=settings.prefix_memory,
                prefix_path=settings.prefix_path,
                speculation=settings.guesses,
            ),
            draft=draft,
        )
