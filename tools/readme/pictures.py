"""The pictures of README.md by the names of their files."""

from collections.abc import Callable
from pathlib import Path

from readme.packages import packages_picture
from readme.recording import record
from readme.speed import speed_picture
from readme.terminal import COLUMNS, terminal_picture

IMAGES = Path(__file__).parents[2] / "docs" / "img"
QUESTIONS = ("what does rmsnorm do?", "what is a kv cache?")


def chat_picture() -> str:
    """Return a conversation with pico."""
    return terminal_picture("uv run chat --temperature 0", record(QUESTIONS, COLUMNS))


PICTURES: dict[str, Callable[[], str]] = {
    "chat": chat_picture,
    "packages": packages_picture,
    "readme-speed": speed_picture,
}
