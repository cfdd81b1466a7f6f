"""An engine that computes many requests at once: continuous batching over pages of keys and values.

Load a model, add a request, and print its text:

    backend = BackendChoice.choose()  # of tinyllm_kernels
    engine = Engine(*load("pico", ops=backend.ops, dtype=backend.dtype))
    state = engine.add(Request(engine.tokenizer.encode("what does rmsnorm do?")))
    for output in engine.run(state):
        print(output.text, end="")
"""

from tinyllm_engine.async_engine import AsyncEngine
from tinyllm_engine.config import EngineSettings
from tinyllm_engine.engine import Engine
from tinyllm_engine.errors import (
    EngineClosedError,
    EngineFullError,
    GrammarLimitError,
    PromptTooLongError,
    RequestError,
    RequestFailedError,
    UnreadOutputError,
)
from tinyllm_engine.grammar.grammar import Grammar
from tinyllm_engine.grammar.json_schema import enforceable_schema
from tinyllm_engine.kv.memory_plan import MemorySettingError
from tinyllm_engine.output import (
    EngineStats,
    Output,
    RequestFinishReason,
    SampledToken,
    TokenLogprob,
    Usage,
)
from tinyllm_engine.request import Request, RequestState

__all__ = [
    "AsyncEngine",
    "Engine",
    "EngineClosedError",
    "EngineFullError",
    "EngineSettings",
    "EngineStats",
    "Grammar",
    "GrammarLimitError",
    "MemorySettingError",
    "Output",
    "PromptTooLongError",
    "Request",
    "RequestError",
    "RequestFailedError",
    "RequestFinishReason",
    "RequestState",
    "SampledToken",
    "TokenLogprob",
    "UnreadOutputError",
    "Usage",
    "enforceable_schema",
]
