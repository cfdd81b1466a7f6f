"""This process as one of several that share a model."""

import faulthandler
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Ranks
from tinyllm_ops import REFERENCE, OpSet

from tinyllm_qwen.checkpoint.weights import Progress
from tinyllm_qwen.loader import load
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.follower import Follower
from tinyllm_qwen.parallel.leader import Leader
from tinyllm_qwen.parallel.line import Line, Loss
from tinyllm_qwen.parallel.rendezvous import agree, meet
from tinyllm_qwen.parallel.split import HEADS, Split
from tinyllm_qwen.text.tokenizer import Tokenizer

JOINING = 60
"""Seconds that a rank waits for the others before it gives up."""

_RING_PATIENCE = 15
"""Seconds after which MLX's ring gives up a neighbor that does not listen yet."""

NOTICED = 2.0
"""Seconds within which lines say that a rank is gone whose part of a sum is missing."""

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
    """One rank: the group that it is in, and its lines to the others; a context that it leaves.

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
        hosts = os.environ.get("MLX_HOSTFILE")
        if hosts and Path(hosts).is_file() and not Path(hosts).read_text().strip():
            return None  # so mlx.launch tells the only process that it starts
        # MLX waits inside, where no other thread of Python gets a turn: this clock needs none.
        with Path(os.devnull).open("w") as nowhere:
            faulthandler.dump_traceback_later(JOINING, exit=True, file=nowhere)
            try:
                group = _described_group()
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
        fact = f"model {_fingerprint(model)} in {model.dtype}, --split {self.split}"
        agree(self.ranks, fact)
        return (Leader(model, self.lines) if self.leads else model), tokenizer

    def follow(self, model: Qwen) -> None:
        """Do as rank 0 says until it says no more; see `Follower`."""
        (line,) = self.lines
        Follower(model).follow(line.received())

    def await_loss(self) -> None:
        """Give the lines time to say which rank is gone, after a computation has failed.

        A sum without one of its ranks fails at once, and does not know which one it was. The line
        to that rank knows, as soon as the system gives its thread a turn.
        """
        time.sleep(NOTICED)

    def __enter__(self) -> "Member":
        """Compute with the others."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        """Tell the others that this one ends, once it has done its part of what they do.

        Raises:
            RuntimeError: instead of one that says no more than that rank 0 is gone, if it has left
                in good order.
        """
        failed = isinstance(error, RuntimeError)
        if failed:
            self.await_loss()
        elif isinstance(error, Exception):
            # Others may fail for the same reason, and are to say that and not that this one left.
            for line in self.lines:
                line.let_go()
            time.sleep(NOTICED)
        if self.leads and not failed:
            mx.synchronize()
        for line in self.lines:
            line.close()
        if failed and any(line.ended for line in self.lines):
            raise RuntimeError("rank 0 has ended before the others: it says why") from error


def _described_group() -> mx.distributed.Group:
    """The group that the environment describes.

    Whoever starts ranks by hand may need longer to get to the next machine than MLX's ring waits.
    """
    until = time.monotonic() + JOINING - _RING_PATIENCE
    while True:
        try:
            return mx.distributed.init(strict=True)
        except (RuntimeError, ValueError) as error:
            if "Couldn't connect" in str(error) and time.monotonic() < until:
                continue
            raise RuntimeError(
                f"the ranks do not come together: {error}. Start all with a launcher, or each with "
                "MLX_RANK, from 0 on, and MLX_HOSTFILE, a file such as "
                '[["10.0.0.1:40001"], ["10.0.0.2:40001"]] with an address of each'
            ) from error


def _fingerprint(model: Qwen) -> str:
    """What tells one model from another: its config, and the one weight that all ranks have."""
    digest = hashlib.sha256(repr(model.config).encode())
    digest.update(repr(model.norm.weight.astype(mx.float32).tolist()).encode())
    return digest.hexdigest()[:12]
