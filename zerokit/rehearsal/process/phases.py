"""Phases of a run, its optimizer steps, and when enough of them were seen.

``load`` until an engine begins, ``init`` inside of it, ``forward`` until the backward begins, ``backward``
until the optimizer's step, ``step``, ``eval`` without gradients, ``generate``, ``save``, and ``other``.
With DeepSpeed its engine says which; without, the outermost module's call, ``backward`` and the
optimizer's hooks do.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zerokit.domain.phases import TRAINING_PHASES
from zerokit.instrument import engine_facts
from zerokit.instrument.engine_facts import DividedModels, adapter_targets
from zerokit.rehearsal.process import operators
from zerokit.rehearsal.process.depth import Depth, watch
from zerokit.rehearsal.process.endings import StopRehearsal
from zerokit.rehearsal.process.feed import Feed
from zerokit.rehearsal.process.guesses import Modules
from zerokit.rehearsal.process.ledger import Origin
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.recorder import Recorder
from zerokit.rehearsal.result import FROZEN, QUANTISED, WEIGHTS


def describe(module: Any) -> dict[str, Any]:
    """``config``: Hugging Face's, None of another model; ``method``; adapters' ``lora_rank`` and targets, and
    whether they are in the precision of the weights, ``lora_narrow``; ``reentrant``: its checkpointing."""
    adapters = getattr(module, "peft_config", None)
    base = module
    if adapters:
        with contextlib.suppress(Exception):  # another peft
            base = module.get_base_model()
    config = None
    if hasattr(getattr(base, "config", None), "to_dict"):
        with contextlib.suppress(TypeError, ValueError):
            config = json.loads(json.dumps(base.config.to_dict(), default=str))
    facts: dict[str, Any] = {"config": config, "method": "full", "reentrant": _is_reentrant(module)}
    lora = next(iter(adapters.values()), None) if isinstance(adapters, dict) else None
    if lora is not None and getattr(lora, "r", None):
        facts |= {"method": "lora", "lora_rank": int(lora.r), "lora_targets": list(adapter_targets(module)),
                  "lora_dropout": float(getattr(lora, "lora_dropout", 0.0)),
                  "lora_narrow": len({one.dtype for one in module.parameters()}) == 1}  # fmt: skip
        if getattr(base, "is_loaded_in_4bit", False):
            facts["method"] = "qlora"
    return facts


def _is_reentrant(module: Any) -> bool | None:
    """Whether layers of Hugging Face's are checkpointed with ``use_reentrant``; None: they are not, or it is
    not known (transformers 5.23, modeling_utils.py:3162)."""
    functions = (getattr(part, "_gradient_checkpointing_func", None) for part in module.modules())
    given = {getattr(function, "keywords", {}).get("use_reentrant") for function in functions if function}
    return given.pop() if len(given) == 1 else None


def is_fully_sharded(module: Any) -> bool:
    """Whether PyTorch's FSDP, of either version, shards it."""
    return any(base.__module__.startswith("torch.distributed.fsdp") for base in type(module).__mro__)


def peers(module: Any) -> int:
    """Ranks that divide its layers: of the largest mesh of its DTensors; 1: it has none."""
    meshes = (getattr(parameter, "device_mesh", None) for parameter in module.parameters())
    return max((mesh.size() for mesh in meshes if mesh is not None), default=1)


def unwrapped(module: Any) -> tuple[list[str], float]:
    """Classes of layers that are no FSDP units of their own, so that one unit holds several of them; and the
    largest share of all elements that is gathered at once where each is one."""
    classes, layers, within_layers = set[str](), list[int](), 0
    for part in module.modules():
        if isinstance(part, torch.nn.ModuleList) and len(part) > 1 and len(set(map(type, part))) == 1:
            sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in part]
            if is_fully_sharded(part[0]) or sum(sizes) <= within_layers:  # layers inside of layers
                continue
            classes, layers, within_layers = {type(part[0]).__name__}, sizes, sum(sizes)
    every = sum(parameter.numel() for parameter in module.parameters())
    return sorted(classes), max(every - within_layers, *layers) / every if layers and every else 1.0


def weights(module: Any) -> Iterator[tuple[Any, str]]:
    """Each parameter's storage, and what it holds; under ZeRO-3 and FSDP 2 that of the rank's share."""
    for parameter in module.parameters():
        what = WEIGHTS if parameter.requires_grad else FROZEN
        if not parameter.dtype.is_floating_point or getattr(parameter, "quant_state", None) is not None:
            what = QUANTISED
        own = getattr(parameter, "ds_tensor", getattr(parameter, "_local_tensor", parameter))
        yield own.untyped_storage(), what


STEPS_AFTER_ENOUGH = 6
"""A script that goes on with other steps after its data has ended is stopped after so many."""
FEWEST_STEPS = 3
"""Optimizer states come with the first step, ZeRO-3 fetches ahead from its third forward on."""
FEWEST_STEPS_OF_EACH = 2
"""An optimizer that begins later (another fold, another layer) brings its states with its first step: the
forward and backward beside them are its second."""
LOCATED_BYTES = 1 << 14
"""Allocations from this size on are traced to a module and a line."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Phases:
    """Follows the script through its phases.

    Attributes:
        enough_after: the steps after which every phase's peak repeated, or ``most_steps`` were done; None:
            not yet.
        optimizers: how many different ones stepped so far.
        most_rows: of the batches that training forwards were given; 0: not known.
        lengths: tokens of a row in the shortest and the longest of these batches; None: no tokens were fed.
        engines: DeepSpeed's, so far; ``observed``: what the one that trains runs with, and ``model`` which
            model it trains. ``engine_config``: of its engine; ``depth``: with how many of its layers.
        fully_sharded: whether PyTorch's FSDP shards the model that is trained. ``peers``: ranks that divide
            its layers without it.
        checkpointing: whether layers of the model that is trained recompute, without an engine; None: not
            known.
    """

    def __init__(self, machine: Machine, most_steps: int) -> None:
        self._machine, self._ledger, self.most_steps = machine, machine.ledger, most_steps
        self._fewest_steps = FEWEST_STEPS
        self.steps = 0
        self.optimizers = 0
        self.repeats = False
        self.repeats_end = True  # whether peaks that repeat are enough
        self.enough_after: int | None = None
        self.has_engine = False
        self.engines = 0
        self.config_files: set[str] = set()
        self.data_parallel = False
        self.fully_sharded, self.peers = False, 1
        self.unwrapped: tuple[list[str], float] = ([], 1.0)
        self.checkpointing: bool | None = None
        self.observed = engine_facts.EngineFacts()
        self._divided = DividedModels(self.observed)
        self.depth = Depth()
        self.model: dict[str, Any] | None = None
        self.engine_config: dict[str, Any] | None = None
        self.modules = Modules()
        self.on_step: Callable[[int], None] | None = None
        self.on_phase: Callable[[str], None] | None = None  # where it begins for the first time
        self._entered: set[str] = set()
        self.recorder: Recorder | None = None
        self.feed = Feed()
        self._steps_by: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._steps_of_last = 0
        self._late_steps = 0
        self.most_rows = 0
        self.lengths: tuple[int, int] | None = None
        self._last_called: Callable[[], torch.nn.Module | None] = lambda: None
        self._in_backward = 0
        self._before_eval = ""
        self._whole: list[str] = []
        self._step_peaks: list[dict[str, int]] = []
        self._names: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()

    # ---------------------------------------------------------------- phases

    @property
    def phase(self) -> str:
        """Where the script is."""
        return self._ledger.phase

    def _enter(self, phase: str) -> None:
        self._ledger.enter(phase)
        if phase not in self._entered:
            self._entered.add(phase)
            if self.on_phase is not None:
                self.on_phase(phase)

    def enter(self, phase: str) -> None:
        """A phase begins, unless a larger one goes on around it."""
        if not self._whole:
            self._enter(phase)

    @contextlib.contextmanager
    def inside(self, phase: str) -> Iterator[None]:
        """A phase from here to there; what was before goes on, but for what makes an engine."""
        before = self._ledger.phase
        self._whole.append(phase)
        self._enter(phase)
        try:
            yield
        finally:
            self._whole.pop()
            self._enter(self._whole[-1] if self._whole else "other" if phase == "init" else before)

    @property
    def evaluates(self) -> bool:
        """Whether the script has put the model that it called last into evaluation mode."""
        model = self._last_called()
        return model is not None and not model.training

    # ---------------------------------------------------------------- steps

    @property
    def enough(self) -> bool:
        """Whether the script's training is to end: enough was seen of it, and of the optimizer that stepped
        last."""
        return self.was_enough and self._steps_of_last >= FEWEST_STEPS_OF_EACH

    @property
    def was_enough(self) -> bool:
        """Whether enough was seen, if not of an optimizer that began later."""
        return self.enough_after is not None

    def see_at_least(self, steps: int) -> None:
        """Something in the script comes every so many steps only."""
        self._fewest_steps = max(self._fewest_steps, steps)
        self.most_steps = max(self.most_steps, steps)

    def follow(self, enough_after: int | None) -> None:
        """Train exactly as many steps as another rank, which saw enough after ``enough_after``; None: its
        script ended before."""
        self.repeats_end = False
        self.most_steps = sys.maxsize if enough_after is None else enough_after

    def step_done(self, optimizer: Any) -> None:
        """``optimizer``, or an engine, applied a step. Raises StopRehearsal: the script goes on although it
        was shown the end of its data."""
        self.steps += 1
        self.feed.step_done()
        self._steps_of_last = self._steps_by.get(optimizer, 0) + 1
        self._steps_by[optimizer] = self._steps_of_last
        self.optimizers += self._steps_of_last == 1
        self._late_steps += self.enough  # this step is one more than were needed
        self._step_peaks.append(self._ledger.recent_peaks)  # the run's peaks keep the larger ones
        self._ledger.recent_peaks = {}
        if self.on_step is not None:
            self.on_step(self.steps)
        if not self.was_enough:
            alike = len({"generate" in peaks for peaks in self._step_peaks}) == 1
            self.repeats = self.steps >= self._fewest_steps and alike and self.last_steps_differ_by == 0
            if (self.repeats and self.repeats_end) or self.steps >= self.most_steps:
                self.enough_after = self.steps
        if self.recorder is not None:
            self.recorder.step_done(self.steps, is_enough=self.was_enough)
        if self._late_steps >= STEPS_AFTER_ENOUGH:
            raise StopRehearsal

    @property
    def last_steps_differ_by(self) -> float | None:
        """The largest difference between the last two steps' peaks of a phase, as a share of the larger one;
        None: there were not two."""
        if len(self._step_peaks) < 2:
            return None
        before, now = self._step_peaks[-2:]
        pairs = [(before.get(name, 0), now.get(name, 0)) for name in TRAINING_PHASES]
        return max((abs(one - two) / max(one, two) for one, two in pairs if one or two), default=0.0)

    # ---------------------------------------------------------------- origins

    def origin(self, why: str, size: int) -> Origin:
        """Phase, operator, module and line of an allocation."""
        phase = self._ledger.phase
        if size < LOCATED_BYTES:
            return phase, "", "", ""
        stack = self.modules.stack
        return phase, why, self._module_name(stack) if stack else "", self.modules.script_line()

    def _module_name(self, stack: list[Any]) -> str:
        root, inner = stack[0], stack[-1]
        names = self._names.get(root)
        if names is None or id(inner) not in names:
            names = {id(module): _NUMBER.sub("*", name) for name, module in root.named_modules()}
            names.setdefault(id(inner), type(inner).__name__)
            self._names[root] = names
        return names[id(inner)] or type(root).__name__

    def find_weights(self, module: torch.nn.Module) -> None:
        """Tell the ledger where the weights are of a module that is trained."""
        for storage, what in weights(module):
            self._ledger.holds(storage, what)

    # ---------------------------------------------------------------- without an engine

    def install(self) -> None:
        """Follow modules, ``backward`` and optimizers."""
        self._wrap_module_calls()
        self._wrap_backward()
        watch(self.depth)
        register_optimizer_step_pre_hook(self._before_optimizer)
        register_optimizer_step_post_hook(self._after_optimizer)

        def product(name: str, output: torch.Tensor) -> None:
            if self._ledger.phase == "forward":
                self.feed.product(output, is_fp8=operators.known(name).fp8)

        self._machine.product = product

    def note_batch(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What a forward that trains was given."""
        self.feed.batch(module, args, kwargs)
        if self.fully_sharded:
            self._divided.training_forward(module, args, kwargs)
            self.engine_config = self.observed.facts
        rows, columns = engine_facts.batch(args, kwargs)
        self.most_rows = max(self.most_rows, rows or 0)
        if columns and "input_ids" in kwargs:
            fewest, most = self.lengths or (columns, columns)
            self.lengths = min(fewest, columns), max(most, columns)

    def _wrap_module_calls(self) -> None:
        call, is_compiling = torch.nn.Module.__call__, torch.compiler.is_compiling
        phases = self

        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # Dynamo traces this frame: nothing of ours belongs into its graph
                return call(self, *args, **kwargs)
            modules = phases.modules
            stack = modules.stack
            if not stack:
                phases._outermost_call(self)
                if phases.phase == "forward":
                    phases.note_batch(self, args, kwargs)
            modules.enter(self)
            try:
                return call(self, *args, **kwargs)
            finally:
                modules.leave()
                if not stack and phases.phase == "eval" and not phases._whole and not phases.has_engine:
                    before = phases._before_eval
                    phases._enter(before if before in TRAINING_PHASES else "other")

        torch.nn.Module.__call__ = called
        Modules.code = called.__code__

    def _outermost_call(self, module: torch.nn.Module) -> None:
        is_new = module is not self._last_called() and next(module.parameters(), None) is not None
        if is_new:
            self._last_called = weakref.ref(module)
        if self.has_engine or self._whole or self._in_backward:
            return
        if torch.is_grad_enabled():
            self._enter("forward")
            if is_new:
                self.find_weights(module)
                self.depth.trained(module)
                if not is_fully_sharded(module):
                    self.peers = max(self.peers, peers(module))
                elif not self.fully_sharded:
                    self.fully_sharded, self.unwrapped = True, unwrapped(module)
                    self.model = describe(module)
                    self.depth.see(module)
                self.checkpointing = self.checkpointing or engine_facts.checkpointing(module)
        elif self._ledger.phase != "eval":
            self._before_eval = self._ledger.phase
            self._enter("eval")

    def _wrap_backward(self) -> None:
        phases, backward = self, torch.autograd.backward

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not phases.has_engine:
                phases.enter("backward")
            phases.feed.batches += not phases._in_backward  # reentrant checkpointing has its own inside
            phases._in_backward += 1
            try:
                return backward(*args, **kwargs)
            finally:
                phases._in_backward -= 1

        torch.autograd.backward = wrapped

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.has_engine:
            self.enter("step")

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.has_engine:
            self.enter("other")
            self.observed.stepped(optimizer)
            self.step_done(optimizer)


@dataclass(frozen=True, slots=True)
class Context:
    """One rehearsed process."""

    machine: Machine
    phases: Phases
