"""The type of a model that runs in one process or in several processes."""

from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.driver import Driver

LanguageModel = Qwen | Driver
"""A model for `generate` and the engine. A `Driver` has the methods of `Qwen` that both call."""
