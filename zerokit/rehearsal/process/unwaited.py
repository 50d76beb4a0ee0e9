"""Tensors of collectives that nobody waits for (``work.get_future()`` in a communication hook of DDP's).

PyTorch's NCCL watchdog, which looks every 0.1 s, hands them over when the collective is done, and the next
collective that the main thread issues frees them (``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`` of
2.11, runLoop and workEnqueue). How many steps end within 0.1 s is not known here: a step's tensors stay until
the next step's first collective, and every phase of training takes at least its figure. Measured with
accelerate's ddp_comm_hook.py on two H200s: eleven steps' tensors, 610 MB.
"""

from __future__ import annotations

import torch

from zerokit.rehearsal.process.ledger import GpuMemory


class Unwaited:
    """These tensors of one process: those of the step that goes on, and of the last one."""

    _NAME = "tensors of collectives that nobody waits for"
    _BEFORE_TRAINING = ("load", "init")

    def __init__(self, ledger: GpuMemory) -> None:
        self._ledger = ledger
        self._of_this_step: list[torch.Tensor] = []
        self._of_last_step: list[torch.Tensor] = []
        self._bytes = self._most_bytes = 0

    def put(self, tensors: list[torch.Tensor]) -> None:
        """The last reference to a collective's work is gone."""
        self._of_this_step += tensors
        self._bytes += sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        self._most_bytes = max(self._most_bytes, self._bytes)

    def collective_issued(self) -> None:
        """What the last step left is freed."""
        self._of_last_step = []

    def step_done(self) -> None:
        """An optimizer step ended."""
        self._of_last_step += self._of_this_step
        self._of_this_step = []
        self._bytes = 0

    def note(self) -> str | None:
        """What to say of them, once the phases are known; None where every collective was waited for."""
        if not self._most_bytes:
            return None
        for phase in self._ledger.peaks:
            if phase not in self._BEFORE_TRAINING:
                self._ledger.lower_bounds.setdefault(phase, set()).add(self._NAME)
        return (
            "nobody waits for some asynchronous collectives (a communication hook of DDP's): PyTorch keeps "
            f"their tensors for 0.1 s and more, {self._most_bytes / 2**20:.1f} MiB for each step. One step's "
            "are counted; if a step takes less than 0.1 s, add as many again for each further step in 0.1 s"
        )
