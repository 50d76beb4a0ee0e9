"""Hooks that are put when the script imports torch, DeepSpeed or accelerate, and never before.

Nothing is imported on the script's behalf. A hook that does not fit the installed version is left out:
the run goes on, with less to report.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from zerokit.domain.phases import TRAINING_PHASES
from zerokit.instrument import phases
from zerokit.instrument.engine_facts import live_modules, resident_tensor_bytes
from zerokit.instrument.phases import in_place_of
from zerokit.instrument.post_import import PostImport, merged
from zerokit.launcher.rank import local_store, step_limit, trackers
from zerokit.launcher.rank.calls import Calls
from zerokit.launcher.rank.checkpoints import Checkpoints
from zerokit.launcher.rank.cuda_memory import CudaMemory
from zerokit.launcher.rank.memory_snapshots import MemorySnapshots
from zerokit.launcher.rank.oom_record import OomWatch
from zerokit.launcher.rank.plain_training import PlainTraining
from zerokit.launcher.rank.probe import Probe
from zerokit.launcher.rank.resumed import Resumed


def install(probe: Probe, calls: Calls) -> PostImport:
    """Put the hooks for this rank."""
    oom, plain = OomWatch(probe, MemorySnapshots(probe)), PlainTraining(probe)
    calls.engines = lambda: [engine for reference in ENGINES if (engine := reference()) is not None]
    saves, resumed = Checkpoints(probe), Resumed()
    hooks = merged(
        {
            "torch": functools.partial(_hook_torch, probe, oom),
            "deepspeed.runtime.engine": functools.partial(_hook_engine, probe, oom, saves, plain),
            "deepspeed.runtime.pipe.engine": functools.partial(_hook_pipeline, probe),
            local_store.RENDEZVOUS: local_store.keep_store_local,
            "torch.distributed.distributed_c10d": calls.hook,
            "deepspeed.runtime.zero.partitioned_param_coordinator": calls.hook_zero3,
        },
        {"torch": plain.hook_torch},
        trackers.hooks(probe),
        phases.hooks(probe.inside),
        {"transformers.trainer": functools.partial(_tell_batches, probe)},
        {"transformers.trainer": saves.hook_trainer, "accelerate.accelerator": saves.hook_accelerate},
        {
            "transformers.trainer": resumed.hook_trainer,
            "accelerate.accelerator": resumed.hook_accelerate,
            "accelerate.optimizer": resumed.hook_accelerated_optimizer,
            "deepspeed.runtime.engine": lambda module: resumed.hook_engine(module.DeepSpeedEngine),
        },
        probe.training.hooks(),
    )
    if probe.identity.device == "cpu":
        hooks["deepspeed.comm.torch"] = _hook_comm
        hooks["accelerate.state"] = _hook_accelerate_state
    finder = PostImport(hooks)
    finder.install()
    return finder


def _hook_torch(probe: Probe, oom: OomWatch, torch: ModuleType) -> None:
    if probe.identity.device == "cpu":
        return
    if not hasattr(torch._C, "_cuda_memoryStats"):
        probe.gpu_status = "no_cuda_build"  # it has no such functions
        return
    if probe.cuda is not None and probe.cuda.installed_in(torch):
        return  # torch is executed again (a reload): its C extension, which is wrapped, is not
    cuda = CudaMemory(torch)
    cuda.on_foreign_reset = probe.foreign_reset
    cuda.install()
    probe.cuda = cuda
    oom.attach(torch)


def _hook_engine(
    probe: Probe, oom: OomWatch, saves: Checkpoints, plain: PlainTraining, module: ModuleType
) -> None:
    engine = module.DeepSpeedEngine
    saves.hook_engine(engine)

    def backward(self: Any) -> None:
        if probe.phase != "backward":  # accelerate calls engine.step only where the optimizer steps
            probe.position = (probe.steps, probe.micro_steps + 1)
        probe.enter("backward")

    probe.learning.hook(engine)
    limit = step_limit.of_environment(probe)

    def after_model_step(self: Any) -> None:
        probe.skipped_steps = int(getattr(self, "skipped_steps", 0) or 0)
        probe.step_done()
        if limit is not None:
            limit.step_done()

    def after_init(self: Any) -> None:
        oom.know(weakref.ref(self))
        plain.end()
        ENGINES.append(weakref.ref(self))

    _wrap(engine, "__init__", before=lambda self: _note_baseline(probe), after=after_init)
    _tell_forwards(probe, engine)
    _wrap(engine, "train", before=lambda self: probe.enter("other") if probe.phase == "eval" else None)
    _wrap(engine, "backward", before=backward)
    _wrap(engine, "_backward_prologue", before=backward)
    _wrap(engine, "step", before=lambda self: probe.enter("step"), after=lambda self: probe.enter("other"))
    _wrap(engine, "_take_model_step", before=lambda self: probe.enter("step"), after=after_model_step)


def _tell_forwards(probe: Probe, engine: Any) -> None:
    """A forward with gradients is training; one without is evaluation, and leaves a step going on. The loss
    of a preference trainer runs its reference model within a training forward."""
    original = engine.forward
    torch = sys.modules["torch"]

    @in_place_of(engine, "forward")
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            probe.enter("forward")
            if probe.is_rank:
                with contextlib.suppress(Exception):
                    living = sum(reference() is not None for reference in ENGINES)
                    probe.observed.training_forward(self, args, kwargs, living)
            return original(self, *args, **kwargs)
        before = probe.phase
        probe.enter("eval")
        result = original(self, *args, **kwargs)
        if before in TRAINING_PHASES:
            probe.enter(before, again=True)
        return result


def _tell_batches(probe: Probe, module: ModuleType) -> None:
    """What a Trainer feeds is in its arguments, which may have changed since DeepSpeed's were filled."""

    def began(trainer: Any) -> None:
        if probe.is_rank:
            with contextlib.suppress(Exception):
                probe.observed.trainer_began(int(trainer.args.train_batch_size))

    _wrap(module.Trainer, "train", before=began)


def _note_baseline(probe: Probe) -> None:
    """When the first engine is made, note what the process of a CPU rank takes beside its models' tensors. By
    then the script has imported what it needs and joined its peers; DeepSpeed has yet to allocate."""
    if probe.baseline_host_rss_bytes is None and probe.cuda is None and probe.is_rank:
        with contextlib.suppress(Exception):
            resident = probe.host.read()[0]
            tensors = resident_tensor_bytes(live_modules())
            probe.baseline_host_rss_bytes = max(0, resident - tensors)


def _hook_pipeline(probe: Probe, module: ModuleType) -> None:
    """A pipeline's middle stages call autograd, not ``engine.backward``, and never ``engine.step``."""
    engine = module.PipelineEngine
    for name, phase in {"_exec_backward_pass": "backward", "_exec_optimizer_step": "step"}.items():
        original = engine.__dict__.get(name)
        after = (lambda self: probe.enter("other")) if phase == "step" else None
        _wrap(engine, name, before=lambda self, phase=phase: probe.enter(phase), after=after)  # type: ignore[misc]
        for instruction, function in engine._INSTRUCTION_MAP.items():
            if function is original:
                engine._INSTRUCTION_MAP[instruction] = engine.__dict__[name]


ENGINES: list[Any] = []
"""Weak references to the engines that the script made."""


_Heard = Callable[[Any], None]


def _wrap(owner: Any, name: str, before: _Heard | None = None, after: _Heard | None = None) -> None:
    """Run ``before`` and, when it returns, ``after`` around a method; left out where it is missing."""
    original = owner.__dict__.get(name)
    if original is None:
        return

    @in_place_of(owner, name)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(self)
        result = original(self, *args, **kwargs)
        if after is not None:
            after(self)
        return result


def _hook_comm(module: ModuleType) -> None:
    """On CPU ranks DeepSpeed compiles a shared-memory op at first use; Gloo does the same without."""
    module.build_shm_op = lambda: None  # type: ignore[attr-defined]


def _hook_accelerate_state(module: ModuleType) -> None:
    """Without a GPU accelerate finds no backend and makes every rank a job of its own: name Gloo."""
    state = module.PartialState
    original = state._prepare_backend

    @in_place_of(state, "_prepare_backend")
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend, distributed_type = original(self, *args, **kwargs)
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if backend is None and ranks > 1 and os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
            backend = "gloo"
        return backend, distributed_type


def close_process_groups() -> None:
    """On CPU ranks, after success: DeepSpeed and Gloo left open often abort at exit."""
    for reference in ENGINES:
        engine = reference()
        if engine is not None:
            engine.destroy()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
