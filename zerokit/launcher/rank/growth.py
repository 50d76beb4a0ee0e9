"""Does memory grow from step to step? A suspected leak, with its rate."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from zerokit.launcher.rank_file import Record

GPU_LEAK_BYTES = 8 << 20
HOST_LEAK_BYTES = 64 << 20

_POINTS = 256
_WARM_UP_STEPS = 10  # allocator caches, autotuning and lazily made optimizer states settle in these
_WINDOWS = 8
_PER_WINDOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory left after a step that rose all the while."""

    bytes_per_step: float
    growth_bytes: int
    first_step: int
    last_step: int


class GrowthWatch:
    """Watches what is in use after each step, in bounded space.

    A leak raises the floor: what is left after a step rises and never comes back. So the smallest
    value of each of eight equal stretches after the warm-up must rise from one to the next, by at
    least ``threshold_bytes`` in all and still in the second half (a cache that fills up stops).
    """

    def __init__(self, threshold_bytes: int) -> None:
        self.threshold_bytes = threshold_bytes
        self._points: list[tuple[int, int]] = []  # (step, smallest value of the stride that begins there)
        self._stride = 1
        self._pending: list[tuple[int, int]] = []

    def observe(self, step: int, used_bytes: int) -> None:
        """Note what is in use after optimizer step ``step`` (counted from 1)."""
        if step <= _WARM_UP_STEPS:
            return
        self._pending.append((step, used_bytes))
        if len(self._pending) < self._stride:
            return
        self._points.append((self._pending[0][0], min(used for _, used in self._pending)))
        self._pending.clear()
        if len(self._points) >= _POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(first[0], min(first[1], second[1])) for first, second in pairs]
            self._stride *= 2

    def growth(self) -> Growth | None:
        """The growth so far, or None where there is none to speak of."""
        size = len(self._points) // _WINDOWS
        if size < _PER_WINDOW:
            return None
        used = self._points[-size * _WINDOWS :]
        floors = [min(value for _, value in used[i * size : (i + 1) * size]) for i in range(_WINDOWS)]
        steps = [used[i * size][0] for i in range(_WINDOWS)]
        rises = all(later > earlier for earlier, later in pairwise(floors))
        total = floors[-1] - floors[0]
        late = floors[-1] - floors[_WINDOWS // 2]
        if not rises or total < self.threshold_bytes or late < total / 4:
            return None
        return Growth(
            bytes_per_step=total / (steps[-1] - steps[0]),
            growth_bytes=total,
            first_step=steps[0],
            last_step=used[-1][0],
        )


class LeakWatch:
    """Growth of the memory of the GPU and of the host over the steps of a run."""

    def __init__(self) -> None:
        self._gpu = GrowthWatch(GPU_LEAK_BYTES)
        self._host = GrowthWatch(HOST_LEAK_BYTES)

    def observe(self, steps: int, host_bytes: int, gpu_bytes: int | None) -> None:
        """What is in use after so many steps; ``gpu_bytes``: None without a GPU."""
        self._host.observe(steps, host_bytes)
        if gpu_bytes is not None:
            self._gpu.observe(steps, gpu_bytes)

    def leaks(self) -> list[Record]:
        """What grows, as the rank file has it."""
        watched = (("gpu", self._gpu.growth()), ("host", self._host.growth()))
        return [
            {"memory": memory, "bytes_per_step": round(growth.bytes_per_step),
             "growth_bytes": growth.growth_bytes, "first_step": growth.first_step,
             "last_step": growth.last_step}
            for memory, growth in watched if growth is not None
        ]  # fmt: skip
