"""Times the optimizer steps of an unmodified script from inside it, the host's probe between them.

Loaded by a ``sitecustomize`` beside the script where ``STEP_TIMES_TO`` names a file: that rank's step times
and probe rounds are written there. Before its first forward pass the script waits for the file ``go`` in the
same folder, so that imports and data preparation of many scripts can overlap. ``STEP_TRACE_AFTER``: after so
many steps, the next three are traced (``script_trace``) in place of being timed.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure.python_calls import python_call_seconds
from benchmarks.script_trace import PHASE, TRACED_STEPS, Trace
from zerokit.instrument.post_import import PostImport
from zerokit.timing.host_speed import MODEL

_CALLS = 10_000
"""Of a small Python function, timed in every round beside the probe's model."""
_SETTLED_STEPS = 2
"""Kernels are chosen and ZeRO-3's order is learnt before the first step that is timed."""


class Clock:
    """Of one rank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ready = False
        self._steps = 0
        self._began = 0.0
        self._probe: Any = None
        self._trace: Trace | None = None
        self._trace_after = int(os.environ.get("STEP_TRACE_AFTER", 0))
        self.seconds: list[float] = []
        self.rounds: dict[str, list[float]] = {"first": [], "second": [], "python": []}

    def wait(self) -> None:
        """Before a forward pass: for the script's turn, once."""
        if self._ready:
            return
        self._ready = True
        folder = self._path.parent
        (folder / f"ready.{os.environ.get('RANK', '0')}").touch()
        while not (folder / "go").exists():
            time.sleep(0.2)

    def tick(self) -> None:
        """After an optimizer step: its seconds, then rounds of the probe on every rank at once."""
        if self._trace is not None:
            self._steps += 1
            if self._steps == self._trace_after + TRACED_STEPS:
                _settle()
                self._trace.stop({"rank": int(os.environ.get("RANK", "0")), "steps": TRACED_STEPS})
            return
        _settle()
        now = time.perf_counter()
        self._steps += 1
        if self._steps > _SETTLED_STEPS:
            self.seconds.append(round(now - self._began, 5))
        self._meet()
        took = self._round()
        if self._steps >= _SETTLED_STEPS:
            for name, seconds in took.items():
                self.rounds[name].append(float(f"{seconds:.4g}"))
        self.write()  # a run that is ended before its end has these steps
        self._meet()
        _settle()
        if self._trace_after and self._steps == self._trace_after:
            path = self._path.with_name(f"trace.{os.environ.get('RANK', '0')}")
            self._trace = Trace(path)
        self._began = time.perf_counter()

    def _round(self) -> dict[str, float]:
        """The model twice: what it needs came out of the caches during the step, and is there the second
        time; then calls of a small Python function.
        """
        if self._probe is None:
            self._probe = _probe()
        first, second = (float(self._probe.round()[MODEL]) for _ in range(2))
        return {"first": first, "second": second, "python": python_call_seconds(_CALLS)}

    @property
    def tracing(self) -> bool:
        """Whether steps are being traced."""
        return self._trace is not None

    def _meet(self) -> None:
        import torch

        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            torch.distributed.barrier()

    def write(self) -> None:
        """What was timed so far."""
        torch = sys.modules.get("torch")
        if torch is None or not self.seconds:
            return
        found = {
            "step_seconds": self.seconds,
            "rounds": {name: took[: len(self.seconds)] for name, took in self.rounds.items()},
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
        }
        self._path.with_name(f"times.{os.environ.get('RANK', '0')}").write_text(json.dumps(found))


def _settle() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _probe() -> Any:
    """Built outside of ZeRO-3's hands, which would partition its model."""
    import torch
    from transformers.integrations import deepspeed as integration

    from zerokit.doctor.host_probe import HostProbe

    kept = integration._hf_deepspeed_config_weak_ref
    integration._hf_deepspeed_config_weak_ref = None
    try:
        on_gpu = torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        return HostProbe(device, model_only=True)
    finally:
        integration._hf_deepspeed_config_weak_ref = kept


def _marked(clock: Clock, name: str, function: Any) -> Any:
    """The function, which a trace shows as a phase."""

    @functools.wraps(function)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not clock.tracing:
            return function(self, *args, **kwargs)
        import torch

        with torch.profiler.record_function(PHASE + name):
            return function(self, *args, **kwargs)

    return marked


def install() -> None:
    """Watch DeepSpeed's engine as soon as it is imported."""
    clock = Clock(Path(os.environ["STEP_TIMES_TO"]))

    def watch(module: Any) -> None:
        engine = module.DeepSpeedEngine
        forward, step = engine.forward, engine._take_model_step

        @functools.wraps(forward)
        def waiting(self: Any, *args: Any, **kwargs: Any) -> Any:
            clock.wait()
            return forward(self, *args, **kwargs)

        @functools.wraps(step)
        def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(self, *args, **kwargs)
            clock.tick()
            return result

        engine.forward, engine._take_model_step = waiting, timed
        for name in ("forward", "backward", "step"):
            setattr(engine, name, _marked(clock, name, getattr(engine, name)))

    def watch_pipeline(module: Any) -> None:
        # a later stage's first forward needs what an earlier one's sends
        engine = module.PipelineEngine
        train_batch = engine.train_batch

        @functools.wraps(train_batch)
        def waiting(self: Any, *args: Any, **kwargs: Any) -> Any:
            clock.wait()
            return train_batch(self, *args, **kwargs)

        engine.train_batch = waiting

    watched = {"deepspeed.runtime.engine": watch, "deepspeed.runtime.pipe.engine": watch_pipeline}
    PostImport(watched).install()
    atexit.register(clock.write)
