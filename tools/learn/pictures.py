"""The picture of each chapter."""

from collections.abc import Callable, Mapping

from learn.model_pictures import draw_attention, draw_model, draw_positions
from learn.serving_pictures import draw_batching, draw_generate, draw_kernel
from learn.token_pictures import draw_quantization, draw_speculation

PICTURES: Mapping[str, Callable[[], str]] = {
    "attention": draw_attention,
    "positions": draw_positions,
    "model": draw_model,
    "generate": draw_generate,
    "quantization": draw_quantization,
    "batching": draw_batching,
    "speculation": draw_speculation,
    "kernel": draw_kernel,
}
