"""What Inductor gets for a Triton kernel: one that does nothing, but is tuned at its first run as a real one.

A kernel with several configurations is timed in each (``CachingAutotuner.benchmark_all_configs``,
``torch/_inductor/runtime/triton_heuristics.py``). Beside copies of what it writes to, there is a buffer of
the L2 cache's size that is overwritten between runs (``InductorBenchmarker.benchmark_gpu``,
``runtime/benchmarking.py``). Nothing of that stays allocated, but its segments stay reserved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zerokit.rehearsal.process import twins
from zerokit.rehearsal.process.context import Context
from zerokit.rehearsal.process.machine import Machine


class SilentKernel:
    """A kernel without effect.

    Args:
        argument_names: of the kernel, in their order.
        mutated_names: arguments that a timed run must not change.
        is_timed: whether there are configurations to choose from.
    """

    def __init__(
        self,
        machine: Machine,
        argument_names: Sequence[str] = (),
        mutated_names: Sequence[str] = (),
        *,
        is_timed: bool = False,
    ) -> None:
        self._machine = machine
        self._argument_names = tuple(argument_names)
        self._mutated_names = frozenset(mutated_names)
        self._is_timed = is_timed

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Its outputs belong to Inductor's wrapper."""
        if self._is_timed:
            self._is_timed = False
            self._time(dict(zip(self._argument_names, args, strict=False)) | kwargs)
        twins.forget((args, kwargs))

    def _time(self, arguments: dict[str, Any]) -> None:
        ledger = self._machine.ledger
        copies = self._copies(arguments)
        ledger.pass_through(copies, "autotuning")  # a run to warm up
        with ledger.holding((self._machine.gpu.l2_cache_bytes,), "autotuning"):
            ledger.pass_through(copies, "autotuning")

    def _copies(self, arguments: dict[str, Any]) -> list[int]:
        """On the GPU as long as they raise no peak, else on the host (``copy_args_to_cpu_if_needed``)."""
        ledger = self._machine.ledger
        budget = ledger.peak_since_reset_bytes - ledger.allocated_bytes
        copies = []
        for name, value in arguments.items():
            if name not in self._mutated_names or not isinstance(value, FakeTensor):
                continue
            elements = 1 + sum(
                (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
            )
            size = int(elements) * value.element_size()
            if size <= budget:
                budget -= size
                copies.append(size)
        return copies

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def of_source(context: Context, name: str, source: str) -> SilentKernel:
    """Of the Python that Inductor writes: its decorator lists the configurations; nothing is compiled."""
    from torch._inductor.codecache import PyCodeCache

    try:
        tuner = getattr(PyCodeCache.load(source), name)
        return SilentKernel(
            context.machine,
            tuner.fn.arg_names,
            tuner.mutated_arg_names,
            is_timed=len(tuner.configs) > 1 and not torch.are_deterministic_algorithms_enabled(),
        )
    except Exception as error:
        context.machine.warn(f"torch.compile: how its kernels are tuned is not known ({error})")
        return SilentKernel(context.machine)
