"""Ranks on one machine find each other and its free memory, before any of them reads weights."""

import mlx.core as mx
import pytest
from tinyllm_layers import Communicator
from tinyllm_qwen.partition import local_ranks as module
from tinyllm_qwen.partition.local_ranks import LocalRanks, local_ranks


class Neighbors(Communicator):
    """Rank 1 of four. Ranks 0 and 3 are on its machine, with other numbers of free bytes."""

    rank, size = 1, 4

    def all_gather(self, part: mx.array) -> mx.array:
        machine, free = part[:8], part[8:]
        elsewhere = mx.concatenate([255 - machine, mx.zeros_like(free)])
        less = mx.concatenate([machine, mx.array([0] * 7 + [9])])
        more = mx.concatenate([machine, mx.array([1] * 8)])
        return mx.stack([less, part, elsewhere, more])


def test_ranks_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_memory", lambda: 1000)
    assert local_ranks(Neighbors()) == LocalRanks((0, 1, 3), 9)
    monkeypatch.setattr(module, "free_memory", lambda: 5)
    assert local_ranks(Neighbors()) == LocalRanks((0, 1, 3), 5)
    monkeypatch.setattr(module, "free_memory", lambda: -5)  # beyond the limit of a control group
    assert local_ranks(Neighbors()).free == 0


def test_ranks_with_a_gpu_each_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = []

    class Recorded(Neighbors):
        def all_gather(self, part: mx.array) -> mx.array:
            machines.append(part[:8].tolist())
            return super().all_gather(part)

    for device in ({"uuid": "GPU-0"}, {"uuid": "GPU-1"}, {"architecture": "x86_64"}):
        monkeypatch.setattr(mx, "device_info", lambda device=device: device)
        local_ranks(Recorded())
    assert len({str(machine) for machine in machines}) == 3
