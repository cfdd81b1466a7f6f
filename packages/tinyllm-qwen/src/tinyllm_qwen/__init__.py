"""Qwen models: config, checkpoint loader, tokenizer, sampling, generation.

Load a model and print its answer to some messages:

    model, tokenizer = load("pico", ops=MLX)  # of tinyllm_ops
    for piece in generate(model, tokenizer, tokenizer.apply_chat_template(messages)):
        print(piece.text, end="")
"""

from tinyllm_qwen.config.generation import GenerationConfig
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.convert.config import ConversionConfig
from tinyllm_qwen.convert.convert import Conversion, convert
from tinyllm_qwen.errors import (
    CheckpointError,
    ConversionError,
    HubError,
    TemplateError,
    TextTooLongError,
)
from tinyllm_qwen.generate import generate
from tinyllm_qwen.loader import load
from tinyllm_qwen.mlx_lm import from_mlx_lm
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.sampler import Sampler
from tinyllm_qwen.text.output import Piece, Stats
from tinyllm_qwen.text.tokenizer import Tokenizer

__all__ = [
    "CheckpointError",
    "Conversion",
    "ConversionConfig",
    "ConversionError",
    "GenerationConfig",
    "HubError",
    "Piece",
    "Qwen",
    "QwenConfig",
    "Sampler",
    "SamplingParams",
    "Stats",
    "TemplateError",
    "TextTooLongError",
    "Tokenizer",
    "convert",
    "from_mlx_lm",
    "generate",
    "load",
]
