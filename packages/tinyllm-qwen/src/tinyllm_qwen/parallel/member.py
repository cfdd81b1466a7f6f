"""The membership of this process in a group that shares a model."""

import faulthandler
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Communicator, RankCommunicator
from tinyllm_ops import REFERENCE, OpSet

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.weights import Progress
from tinyllm_qwen.loader import load
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.control_channel import ControlChannel, LossCallback
from tinyllm_qwen.parallel.driver import Driver
from tinyllm_qwen.parallel.rendezvous import agree, connect
from tinyllm_qwen.parallel.split import HEADS, Split
from tinyllm_qwen.parallel.weight_files import comparison
from tinyllm_qwen.parallel.worker import work
from tinyllm_qwen.text.tokenizer import Tokenizer

JOIN_TIMEOUT = 60
"""Seconds that a rank waits for the other ranks before it gives up."""

_RING_PATIENCE = 15
"""Seconds after which MLX's ring gives up a neighbor that does not listen yet."""

LOSS_TIMEOUT = 2.0
"""Timeout, in seconds, for the control channels to report a lost rank after a failed all-reduce."""

# Set by mlx.launch (or by hand), by Open MPI and by MPICH.
_RANK_VARIABLES = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def is_launched() -> bool:
    """Return True if a launcher has started this process as one of several."""
    return any(os.environ.get(name) for name in _RANK_VARIABLES)


def launched_split(text: str) -> Split:
    """Parse the split of a model among the processes that a launcher has started.

    Args:
        text: the text that a user types; see `Split.parse`.

    Raises:
        ValueError: if the text is not valid, or this process is not one of several.
    """
    split = Split.parse(text)
    if split != HEADS and not is_launched():
        raise ValueError(
            f"--split {split}: expected several processes, got one: start one for each rank, with "
            "mlx.launch for example"
        )
    return split


@dataclass(frozen=True)
class Member:
    """One rank of a group, with its control channels. Leaving the context closes them.

    Attributes:
        group: all ranks.
        ranks: the communicator of the group.
        channels: the channels: on rank 0 to all other ranks, on every other rank to rank 0.
        split: the division of the model among the ranks.
    """

    group: mx.distributed.Group
    ranks: Communicator
    channels: Sequence[ControlChannel]
    split: Split = HEADS

    @classmethod
    def join(cls, on_loss: LossCallback, split: Split = HEADS) -> "Member | None":
        """Join the other ranks.

        If they do not join within `JOIN_TIMEOUT` seconds, this process ends with exit code 1.

        Args:
            on_loss: a callback for the loss of a rank; see `ControlChannel`.
            split: the division of the models that the ranks load.

        Returns:
            None if this process is the only one.

        Raises:
            RuntimeError: if the group that the environment describes cannot be made.
        """
        hosts = os.environ.get("MLX_HOSTFILE")
        if hosts and Path(hosts).is_file() and not Path(hosts).read_text().strip():
            return None  # mlx.launch gives an empty hostfile to the only process that it starts
        # MLX waits without releasing the GIL, so that no Python thread could enforce the timeout.
        with Path(os.devnull).open("w") as nowhere:
            faulthandler.dump_traceback_later(JOIN_TIMEOUT, exit=True, file=nowhere)
            try:
                group = _described_group()
            finally:
                faulthandler.cancel_dump_traceback_later()
        if group.size() == 1:
            return None
        ranks = RankCommunicator(group)
        return cls(group, ranks, connect(ranks, on_loss), split)

    @property
    def is_driver(self) -> bool:
        """True on rank 0, which drives the other ranks."""
        return self.ranks.rank == 0

    def load(
        self,
        path_or_repo: str | Path,
        *,
        ops: OpSet = REFERENCE,
        dtype: mx.Dtype | None = None,
        revision: str | None = None,
        progress: Progress | None = None,
        compare_progress: Progress | None = None,
    ) -> tuple[Qwen, Tokenizer]:
        """Load this rank's part of a model. All ranks must call this at about the same time.

        The ranks compare all bytes of their weight files, unless they read the same files of one
        machine.

        Args:
            path_or_repo: the checkpoint, as in `tinyllm_qwen.load`.
            ops: the implementation of the maths, or a `Backend`.
            dtype: the dtype of the floating weights, as in `tinyllm_qwen.load`.
            revision: the branch, tag or commit of a repository.
            progress: a callback with the bytes of this rank's part read so far and in all.
            compare_progress: a callback with the bytes compared so far and in all, if the
                comparison takes longer than the loading.

        Returns:
            The part, for `drive` on rank 0 and `work` on the other ranks; and the tokenizer.

        Raises:
            CheckpointError, HubError: as `tinyllm_qwen.load`.
            ValueError: as `tinyllm_qwen.load`, or if another rank loads a different model.
        """
        folder = resolve(path_or_repo, revision)
        with comparison(self.ranks, folder) as weights:
            model, tokenizer = load(
                folder,
                ops=ops,
                dtype=dtype,
                progress=progress,
                group=self.group,
                split=self.split,
            )
            config = blake2b(repr(model.config).encode(), digest_size=6).hexdigest()
            agree(self.ranks, f"model {config} in {model.dtype}, --split {self.split}")
            weights.finish(compare_progress)
        return model, tokenizer

    def drive(self, model: Qwen) -> Driver:
        """Make the model of rank 0. All ranks compute its passes."""
        return Driver(model, self.channels)

    def work(self, model: Qwen) -> None:
        """Execute the commands of rank 0 until there are no more; see `work`."""
        (channel,) = self.channels
        work(model, channel.received())

    def await_loss(self) -> None:
        """After a failed computation, wait until a control channel has reported a lost rank.

        An all-reduce without one of its ranks fails at once, but does not report the lost rank.
        The channel to that rank does, as soon as the system schedules its thread.
        """
        time.sleep(LOSS_TIMEOUT)

    def __enter__(self) -> "Member":
        """Return the member."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        """Announce the end of this process, once its part of running computations is done.

        Raises:
            RuntimeError: if rank 0 has ended in good order, instead of an error that only reports
                the loss of rank 0.
        """
        failed = isinstance(error, RuntimeError)
        if failed:
            self.await_loss()
        elif isinstance(error, Exception):
            # Other ranks may fail for the same reason: they should report the reason and not the
            # end of this process.
            for channel in self.channels:
                channel.ignore_loss()
            time.sleep(LOSS_TIMEOUT)
        if self.is_driver and not failed:
            mx.synchronize()
        for channel in self.channels:
            channel.close()
        if failed and any(channel.ended for channel in self.channels):
            raise RuntimeError(
                "rank 0 ended before the other ranks: see the output of rank 0"
            ) from error


def _described_group() -> mx.distributed.Group:
    """Join the group that the environment describes.

    Joining is tried again, because starting ranks by hand on several machines may take longer than
    MLX's ring waits.

    Raises:
        RuntimeError: if the group cannot be made.
    """
    until = time.monotonic() + JOIN_TIMEOUT - _RING_PATIENCE
    while True:
        try:
            return mx.distributed.init(strict=True)
        except (RuntimeError, ValueError) as error:
            if "Couldn't connect" in str(error) and time.monotonic() < until:
                continue
            raise RuntimeError(
                f"the ranks cannot form a group: {error}. Start all ranks with a launcher, or each "
                "rank with MLX_RANK, counted from 0, and MLX_HOSTFILE, a file of their addresses "
                'such as [["10.0.0.1:40001"], ["10.0.0.2:40001"]]'
            ) from error
