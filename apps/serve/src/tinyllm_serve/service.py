"""The model that is served, and whether it is."""

import time
from collections.abc import Mapping

from tinyllm_engine import AsyncEngine, Engine, EngineSettings
from tinyllm_kernels import Arithmetic
from tinyllm_qwen import GenerationConfig, Tokenizer, load
from tinyllm_qwen.hub import resolve

from tinyllm_serve.api_error import ApiError, closing
from tinyllm_serve.draft_model import load_draft_model
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
        state: requests are taken only when it is "ready".
        created: when the server began, in seconds since 1970.
    """

    def __init__(self, settings: Settings) -> None:
        """Prepare; `start` loads the model."""
        self.settings = settings
        self.engine = AsyncEngine(self._make)
        self.advice = GenerationConfig()
        self.arithmetic: Arithmetic | None = None
        self.state: State = "loading"
        self.created = int(time.time())
        self.metrics = Metrics(lambda: None if self.state == "loading" else self.engine.stats)

    @property
    def name(self) -> str:
        """How clients call the model."""
        return self.settings.served_name

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
        self.state = "ready"

    def facts(self) -> Mapping[str, Fact]:
        """What computes, and how many pages there are."""
        if self.arithmetic is None:
            return {}
        return {
            "ops": self.arithmetic.ops.name,
            "device": self.arithmetic.device,
            "note": self.arithmetic.note or None,
            "pages": self.engine.stats.pages_total,
            "draft_model": self.settings.draft_model,
            "speculation": self.settings.guesses or None,
        }

    def drain(self) -> None:
        """Take no new requests."""
        self.state = "draining"

    async def finish(self) -> None:
        """Wait until those under way have ended."""
        await self.engine.drain()

    async def close(self) -> None:
        """End the engine; one that is still loading ends with the process."""
        if self.state != "loading":
            await self.engine.close()

    async def metrics_text(self) -> bytes:
        """All counts in Prometheus's format."""
        return self.metrics.text()

    def check_ready(self) -> None:
        """Refuse a request, unless requests are taken.

        Raises:
            ApiError: 503 while loading, while draining, and once the engine has failed.
        """
        if self.state == "loading":
            raise closing("the model is still being loaded")
        if self.state == "draining":
            raise closing("the server is shutting down")
        if self.engine.closed is not None:
            raise closing(self.engine.closed)

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
        model, tokenizer = load(folder, ops=self.arithmetic.ops, dtype=self.arithmetic.dtype)
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
