"""DeepSpeed: its compiled operators do nothing, its engine tells the phases. The rest is DeepSpeed's own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from zerokit.domain.phases import TRAINING_PHASES
from zerokit.instrument.phases import after, before, in_place_of, within
from zerokit.rehearsal.process import twins
from zerokit.rehearsal.process.endings import NotRehearsed
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.phases import Context, Phases, describe
from zerokit.timing import operators as kinds

_TENSORS_A_LAUNCH = 36
"""``csrc/adam/multi_tensor_apply.cuh``, depth_to_max_tensors of four lists."""


class SilentOperators:
    """What ``OpBuilder.load`` gives: functions that write into tensors their callers made do nothing.

    Flattening is PyTorch's own; ``multi_tensor_l2norm`` allocates its results
    (``csrc/adam/multi_tensor_adam.cu`` and ``apex``'s multi_tensor_l2norm_kernel.cu).
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def flatten(self, tensors: Any) -> torch.Tensor:
        """One flat tensor (``csrc/utils/flatten_unflatten.cpp``)."""
        flat: torch.Tensor = torch._utils._flatten_dense_tensors(tensors)
        return flat

    def unflatten(self, flat: Any, tensors: Any) -> Any:
        """Views of a flat tensor."""
        return torch._utils._unflatten_dense_tensors(flat, tensors)

    def multi_tensor_l2norm(self, chunk: Any, flag: Any, lists: Any, per_tensor: bool) -> Any:
        """A norm, and one of each tensor."""
        self._machine.saw_kernel("multi_tensor_l2norm", lists)
        return torch.zeros(1, device="cuda"), torch.zeros(len(lists[0]), device="cuda")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return functools.partial(self._run, name)

    def _run(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Tell what would have run. ``multi_tensor_adam`` gets gradients, weights and two moments and writes
        the last three (``csrc/adam/multi_tensor_adam.cu``); the host's Adam gets them as arguments."""
        twins.forget((args, kwargs))
        if name.startswith(("adam_update", "adagrad_update", "lion_update")):
            weights = next((value for value in args if isinstance(value, torch.Tensor)), None)
            elements = weights.numel() if weights is not None else 0
            self._machine.saw_runtime(kinds.CPU_ADAM, name, elements=elements)
            return
        lists = next((value for value in args if isinstance(value, list | tuple)), ())
        tensors = lists or [value for value in args if isinstance(value, torch.Tensor)]
        count = len(lists[0]) if lists and isinstance(lists[0], list | tuple) else 1
        outputs = lists[1:] if name.startswith("multi_tensor") else tensors[-1:]
        self._machine.saw_kernel(name, tensors, outputs, max(1, -(-count // _TENSORS_A_LAUNCH)))


def operators(context: Context, module: ModuleType) -> None:
    """No operator is compiled."""

    def load(self: Any, verbose: bool = True) -> SilentOperators:
        context.machine.stub(f"DeepSpeed operator {getattr(self, 'name', type(self).__name__)}")
        return SilentOperators(context.machine)

    builder = module.OpBuilder
    for cls in vars(module).values():
        if (
            isinstance(cls, type)
            and issubclass(cls, builder)
            and (cls is builder or "is_compatible" in vars(cls))
        ):
            cls.is_compatible = lambda self, verbose=True: True  # type: ignore[attr-defined]
    builder.load = load
    vars(module).update(
        installed_cuda_version=lambda name="": (12, 8), assert_no_cuda_mismatch=lambda name="": True
    )


def engine(context: Context, module: ModuleType) -> None:
    """Phases as the engine means them."""
    phases = context.phases
    cls = module.DeepSpeedEngine

    def begin() -> None:
        phases.has_engine = True
        phases.engines += 1
        phases.depth.is_replayed = True

    _follow_forwards(phases, cls)
    _observe(context, cls)
    for name in ("backward", "_backward_prologue"):
        before(cls, name, functools.partial(phases.enter, "backward"))
    for name in ("step", "_take_model_step"):
        before(cls, name, functools.partial(phases.enter, "step"))
    after(cls, "step", lambda self: phases.enter("other"))
    after(cls, "_take_model_step", phases.step_done)
    before(cls, "__init__", begin)
    if hasattr(cls, "register_compile_pass"):
        _wait_for_compiler(cls)


_COMPILER = "deepspeed.compile.backend"
_waiting_passes: list[tuple[Any, ...]] = []


def _wait_for_compiler(cls: Any) -> None:
    """An engine registers passes of a compiler that few scripts use (``engine.py:726``, 0.19.8), whose import
    takes Inductor's lowerings, half a second of CPU: they are registered when it is imported."""
    original = cls.register_compile_pass

    @in_place_of(cls, "register_compile_pass")
    def register(self: Any, *args: Any) -> None:
        if _COMPILER in sys.modules:
            original(self, *args)
        else:
            _waiting_passes.append(args)


def compiler(context: Context, module: ModuleType) -> None:
    """The passes that engines have registered so far."""
    for args in _waiting_passes:
        module.register_compile_pass(*args)
    _waiting_passes.clear()


def flattening(context: Context, module: ModuleType) -> None:
    """ZeRO-1/2 joins the weights on the GPU where the driver says that it has room, else on the CPU
    (``stage_1_and_2.py:446-520``, 0.19.8): a smaller card has the copy only when the weights are gone."""
    machine, cls = context.machine, module.DeepSpeedZeroOptimizer
    ledger, accelerator = machine.ledger, type(module.get_accelerator())
    start: list[int] = []

    accelerator.available_memory = lambda self, device_index=None: machine.free_bytes
    before(cls, "flatten_dense_tensors_aligned", lambda: start.append(len(ledger.history.born)))

    def joined(optimizer: Any) -> None:
        if start:
            ledger.postpone(start.pop())

    after(cls, "_update_model_bit16_weights", joined)


def configuration(context: Context, cls: Any) -> None:
    """Which file a class of configurations reads: it is made of a file's path, or else of a dictionary or its
    text."""
    original = cls.__init__

    @in_place_of(cls, "__init__")
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        with suppress(OSError, ValueError):  # a text is too long for a name
            if isinstance(config, str) and Path(config).is_file():
                context.phases.config_files.add(str(Path(config).absolute()))
        original(self, config, *args, **kwargs)


def _follow_forwards(phases: Phases, cls: Any) -> None:
    """A reference model's forward within a training step leaves the step's phase going on."""
    original = cls.forward

    @in_place_of(cls, "forward")
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            phases.enter("forward")
            return original(self, *args, **kwargs)
        interrupted = phases.phase
        phases.enter("eval")
        result = original(self, *args, **kwargs)
        phases.enter(interrupted if interrupted in TRAINING_PHASES else "other")
        return result


def _observe(context: Context, cls: Any) -> None:
    """What the engine that trains runs with, and the largest batch that it is fed."""
    forward, phases = cls.forward, context.phases

    @in_place_of(cls, "forward")
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            if phases.model is None:
                phases.model = describe(self.module)
                phases.engine_config = self._config._param_dict
                phases.depth.see(self.module)
                phases.find_weights(self.module)
            phases.observed.training_forward(self, args, kwargs, phases.engines)
            phases.note_batch(self, args, kwargs)
        return forward(self, *args, **kwargs)


def pipeline(context: Context, module: ModuleType) -> None:
    """Says what one stage does not know of the others."""
    machine, cls = context.machine, module.PipelineEngine

    def tell(engine: Any) -> None:
        if engine.num_stages > 1:
            machine.warn(
                f"rank {engine.global_rank} is stage {engine.stage_id + 1} of {engine.num_stages} of a "
                "pipeline: other stages take other memory (`zerokit rehearse --ranks`)"
            )

    after(cls, "__init__", tell)
    # the last stage has the loss; what the others hold before its broadcast is a place for it
    for name in ("_aggregate_total_loss", "_bcast_pipe_scalar"):
        within(cls, name, lambda: machine.under_way.told(only_sender_has=True))


def stages(context: Context, module: ModuleType) -> None:
    """A later stage works on what the earlier ones send: known here, before any layer is built."""

    def ask_for_messages(grid: Any) -> None:
        earlier = range(grid.get_stage_id())
        context.machine.messages.require(grid.stage_to_global(stage_id=stage) for stage in earlier)

    after(module.PipelineParallelGrid, "__init__", ask_for_messages)


def agreement(context: Context, module: ModuleType) -> None:
    """ZeRO-3's ranks compare lists of numbers with rank 0's, and put -1 where they wait for it
    (``deepspeed/runtime/zero/utils.py``): it holds what ours does."""
    of_length, of_rank_0 = module.assert_lst_len_same_as_other_ranks, module.get_lst_from_rank0
    under_way = context.machine.under_way

    @in_place_of(module, "assert_lst_len_same_as_other_ranks")
    def same_length(numbers: list[int]) -> None:
        with under_way.told(sender_has=[len(numbers)]):
            of_length(numbers)

    @in_place_of(module, "get_lst_from_rank0")
    def from_rank_0(numbers: list[int]) -> Any:
        with under_way.told(sender_has=numbers):
            return of_rank_0(numbers)


def vocabulary(context: Context, module: ModuleType) -> None:
    """Tensor-parallel ranks tell each other which part of the vocabulary they hold
    (``deepspeed/sequence/cross_entropy.py``): of a vocabulary in equal parts every rank's is known."""
    original = module._resolve_vocab_metadata

    @in_place_of(module, "_resolve_vocab_metadata")
    def resolved(local_vocab_size: int, start: Any, end: Any, tp_group: Any, device: Any) -> Any:
        tp_rank = torch.distributed.get_rank(tp_group) * local_vocab_size if tp_group is not None else 0
        if start not in (None, tp_rank):
            raise NotRehearsed(
                "deepspeed.sequence.cross_entropy",
                "the vocabulary lies in unequal parts on the tensor-parallel ranks; those of the others are "
                "not known",
            )
        with context.machine.under_way.told(
            of_rank=lambda rank: [rank * local_vocab_size, (rank + 1) * local_vocab_size, local_vocab_size]
        ):
            return original(local_vocab_size, start, end, tp_group, device)
