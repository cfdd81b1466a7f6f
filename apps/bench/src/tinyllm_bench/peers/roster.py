"""Which peers are there."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tinyllm_bench.errors import BenchError
from tinyllm_bench.peers.llama_cpp_runner import LlamaCppRunner
from tinyllm_bench.peers.mlx_lm_runner import MlxLmRunner
from tinyllm_bench.runner import Runner
from tinyllm_bench.settings import Settings
from tinyllm_bench.subject import Subject


def find_peers(
    subject: Subject, settings: Settings, prompt: Sequence[int], folder: Path
) -> tuple[list[Runner], list[str]]:
    """Load each peer that is asked for and can be had.

    Args:
        subject: the model.
        settings: context and lengths.
        prompt: token ids.
        folder: for files that a peer needs.

    Returns:
        The peers, and for each of the others why it is not among them.
    """
    context = settings.keys_before
    makers: dict[str, Callable[[], Runner]] = {
        "mlx-lm": lambda: MlxLmRunner(subject, prompt, context),
        "llama.cpp": lambda: LlamaCppRunner(
            subject, prompt, context, settings.decode_tokens, folder
        ),
    }
    runners, notices = [], []
    for name, make in makers.items():
        if settings.peer and name not in settings.peer:
            continue
        try:
            runners.append(make())
        except BenchError as error:
            notices.append(f"--peers: {error}")
    return runners, notices
