"""Attention in cuDNN, which makes a plan for each shape that the process has not met.

The step time is that of shapes that were met. Where rows differ in length, most steps of a run's beginning
have one that was not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PLAN_SECONDS = (0.1, 0.15)
"""Forward and backward of one shape: 129 and 145 ms, in two series on an H100, PyTorch 2.11 and cuDNN 9.19
(benchmarks/measure/data/attention-plans.jsonl). The other kernels make no plan."""


class AttentionPlans:
    """The shapes of attention that cuDNN was given with gradients."""

    def __init__(self) -> None:
        self._shapes: set[tuple[torch.Size, torch.Size]] = set()

    def see(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """A call whose kernel is cuDNN's."""
        self._shapes.add((query.shape, key.shape))

    def note(self, lengths: tuple[int, int] | None) -> str | None:
        """What to say where rows of unlike length, the shortest and the longest, were fed to cuDNN."""
        if lengths is None or lengths[0] == lengths[1] or len(self._shapes) < 2:
            return None
        low, high = PLAN_SECONDS
        return (
            f"cuDNN's attention makes a plan for each length that a run has not met, and takes {low} to "
            f"{high} s more in that step, which the step time leaves out: pad rows to a multiple "
            "(pad_to_multiple_of), or set TORCH_CUDNN_SDPA_DEPRIORITIZED=1 for other kernels"
        )
