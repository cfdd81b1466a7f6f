"""This process as one of several that share a model."""

import faulthandler
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Ranks
from tinyllm_ops import REFERENCE, OpSet

from tinyllm_qwen.loader import load
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.follower import Follower
from tinyllm_qwen.parallel.leader import Leader
from tinyllm_qwen.parallel.line import Line, Loss
from tinyllm_qwen.parallel.rendezvous import agree, meet
from tinyllm_qwen.split import HEADS, Split
from tinyllm_qwen.tokenizer import Tokenizer
from tinyllm_qwen.weights import Progress

JOINING = 60
"""Seconds that a rank waits for the others before it gives up."""

# What tells a process that it is one of several: mlx.launch (and a user, by hand), Open MPI, MPICH.
_LAUNCHED = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def is_launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    return any(os.environ.get(name) for name in _LAUNCHED)


def launched_split(text: str) -> Split:
    """How the processes that a launcher has started are to divide the model.

    Args:
        text: what the user has said; see `Split.parse`.

    Raises:
        ValueError: if it is not understood, or is said to a process that has no others.
    """
    split = Split.parse(text)
    if split != HEADS and not is_launched():
        raise ValueError(
            f"--split {split}: expected none in a process that shares its model with nobody: start "
            "several, with mlx.launch for example"
        )
    return split


@dataclass(frozen=True)
class Member:
    """One rank: the group that it is in, and its lines to the others.

    Attributes:
        group: all ranks.
        ranks: the same, as layers see them.
        lines: on rank 0 to all others, on these to rank 0.
        split: how they divide a model.
    """

    group: mx.distributed.Group
    ranks: Ranks
    lines: Sequence[Line]
    split: Split = HEADS

    @classmethod
    def join(cls, lost: Loss, split: Split = HEADS) -> "Member | None":
        """Find the others.

        A rank whose others have not come after `JOINING` seconds ends with exit code 1.

        Args:
            lost: what to do when one of them is lost; see `Line`.
            split: how they divide the models that they load.

        Returns:
            None where there are no others.

        Raises:
            RuntimeError: if the group that the environment describes cannot be made.
        """
        # MLX waits inside, where no other thread of Python gets a turn: this clock needs none.
        with Path(os.devnull).open("w") as nowhere:
            faulthandler.dump_traceback_later(JOINING, exit=True, file=nowhere)
            try:
                group = mx.distributed.init(strict=True)
            finally:
                faulthandler.cancel_dump_traceback_later()
        if group.size() == 1:
            return None
        ranks = Ranks(group)
        return cls(group, ranks, meet(ranks, lost), split)

    @property
    def leads(self) -> bool:
        """Whether this is the one that the others follow."""
        return self.ranks.rank == 0

    def load(
        self,
        path_or_repo: str | Path,
        *,
        ops: OpSet = REFERENCE,
        dtype: mx.Dtype | None = None,
        revision: str | None = None,
        progress: Progress | None = None,
    ) -> tuple[Qwen, Tokenizer]:
        """Load this rank's part of a model; all ranks have to, at about the same time.

        Returns:
            The model, on rank 0 a `Leader`; and its tokenizer.

        Raises:
            CheckpointError, HubError: as `tinyllm_qwen.load`.
            ValueError: as `tinyllm_qwen.load`, or if another rank has loaded something else.
        """
        model, tokenizer = load(
            path_or_repo,
            ops=ops,
            dtype=dtype,
            revision=revision,
            progress=progress,
            group=self.group,
            split=self.split,
        )
        digest = hashlib.sha256(repr(model.config).encode()).hexdigest()[:12]
        agree(self.ranks, f"a model of config {digest} in {model.dtype}, --split {self.split}")
        return (Leader(model, self.lines) if self.leads else model), tokenizer

    def follow(self, model: Qwen) -> None:
        """Do as rank 0 says until it says no more; see `Follower`."""
        (line,) = self.lines
        Follower(model).follow(line.received())

    def leave(self) -> None:
        """Tell the others that this one ends, once it has done its part of what they do."""
        if self.leads:
            mx.synchronize()
        for line in self.lines:
            line.close()
