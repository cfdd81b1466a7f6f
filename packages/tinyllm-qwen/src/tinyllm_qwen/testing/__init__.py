"""Small checkpoints for tests, with a scripted text, random letters, or random hybrid layers."""

from tinyllm_qwen.testing.counting import counting_model
from tinyllm_qwen.testing.hybrid import SHAPES, hybrid_checkpoint
from tinyllm_qwen.testing.letters import END, Vocabulary, random_checkpoint, scripted_checkpoint

__all__ = [
    "END",
    "SHAPES",
    "Vocabulary",
    "counting_model",
    "hybrid_checkpoint",
    "random_checkpoint",
    "scripted_checkpoint",
]
