"""What a script does to its training that no setting shows: gradients that are overwritten, clipping that
does nothing, and settings in its code that are not the engine's."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from zerokit.domain.settings import BY_CALL
from zerokit.instrument.engine_facts import settings
from zerokit.instrument.phases import in_place_of

_MOST_FILES = 16
_DEEPEST = 3
_TAIL = 3  # parts of a name by which a saved tensor is known, whatever wrapped the model
_FEWEST_ELEMENTS = 0.5  # of the model's: tied weights and buffers that are left out are less


class SavedWeights:
    """Counts the tensors that ``torch.save`` and safetensors are given, by their sizes alone. What
    DeepSpeed's own checkpoints hold is not looked at: their weights are in other files."""

    def __init__(self, engines: Callable[[], list[Any]]) -> None:
        self._engines = engines
        self._inside = threading.local()
        self._bad: dict[str, dict[str, Any]] = {}

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """By the module after whose import they are put."""
        return {
            "torch": lambda module: self._watch(module, "save", "obj", "f"),
            "safetensors.torch": lambda module: self._watch(module, "save_file", "tensors", "filename"),
            "transformers.modeling_utils": lambda module: self._whole(module.PreTrainedModel),
            "peft.peft_model": lambda module: self._whole(module.PeftModel),
        }

    def hook_engine(self, engine: Any) -> None:
        """What DeepSpeed saves of itself."""
        original = engine.save_checkpoint

        @in_place_of(engine, "save_checkpoint")
        def save_checkpoint(this: Any, *args: Any, **kwargs: Any) -> Any:
            before, self._inside.checkpoint = getattr(self._inside, "checkpoint", False), True
            try:
                return original(this, *args, **kwargs)
            finally:
                self._inside.checkpoint = before

    def account(self) -> list[dict[str, Any]]:
        """Files that are there and lack weights."""
        return [facts for path, facts in list(self._bad.items()) if Path(path).exists()]

    def _watch(self, owner: Any, name: str, content: str, target: str) -> None:
        original = getattr(owner, name)

        @in_place_of(owner, name)
        def save(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with contextlib.suppress(Exception):
                given = {**dict(zip((content, target), args, strict=False)), **kwargs}
                self._saved(given[content], given[target])
            return result

    def _saved(self, content: Any, target: Any) -> None:
        # sizes of the weights that ZeRO-3 divides, by the end of their name.
        partitioned = {
            _tail(name): parameter.ds_numel
            for engine in self._engines()
            for name, parameter in engine.module.named_parameters()
            if hasattr(parameter, "ds_numel") and hasattr(parameter, "ds_tensor")
        }
        if not partitioned or getattr(self._inside, "checkpoint", False):
            return
        path = os.fspath(target) if isinstance(target, str | os.PathLike) else getattr(target, "name", None)
        if not isinstance(path, str):
            return
        path = os.path.abspath(path)  # noqa: PTH100
        tensors = list(_tensors(content))
        empty = [name for name, size in tensors if size == 0 and partitioned.get(_tail(name))]
        if (call := getattr(self._inside, "call", None)) is not None:
            call.append((path, sum(size for _, size in tensors)))
        self._bad.pop(path, None)
        if empty:
            self._note(path, {"empty": len(empty), "tensors": len(tensors)})

    def _note(self, path: str, facts: dict[str, Any]) -> None:
        if len(self._bad) < _MOST_FILES:
            self._bad[path] = {"path": path, **facts}

    def _whole(self, model: Any) -> None:
        """A call that saves all of a model, or all of its adapters, in as many files as it likes."""
        original = model.save_pretrained

        @in_place_of(model, "save_pretrained")
        def save_pretrained(this: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "call", None) is not None:
                return original(this, *args, **kwargs)
            files: list[tuple[str, int]] = []
            self._inside.call = files
            try:
                result = original(this, *args, **kwargs)
            finally:
                self._inside.call = None
            with contextlib.suppress(Exception):
                has_adapters = hasattr(this, "peft_config")
                sizes = [
                    parameter.ds_numel
                    for parameter in this.parameters()
                    if hasattr(parameter, "ds_numel") and (parameter.requires_grad or not has_adapters)
                ]
                saved, whole = sum(size for _, size in files), sum(sizes)
                if (
                    files
                    and not any(path in self._bad for path, _ in files)
                    and saved < _FEWEST_ELEMENTS * whole
                ):
                    self._note(files[0][0], {"elements": saved, "of": whole})
            return result


def _tail(name: str) -> str:
    parts = [part for part in name.split(".") if part != "default"]  # peft leaves its adapter's name out
    return ".".join(parts[-_TAIL:])


def _tensors(content: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Names and numbers of elements of what is saved: a dictionary, one inside another, or a module."""
    if isinstance(content, sys.modules["torch"].nn.Module):
        content = dict(content.named_parameters())
    if not isinstance(content, Mapping) or depth == _DEEPEST:
        return
    for name, value in content.items():
        if hasattr(value, "numel") and hasattr(value, "dtype"):
            yield str(name), int(value.numel())
        else:
            yield from _tensors(value, depth + 1)


_LIBRARIES = ("accelerate", "transformers")
_NOT_PLANNED = ("no", "fp8")
"""Precisions: what Accelerate has where nobody says one, and what no plan has."""
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")


class _Window:
    """The backward passes of one engine since its last step, and how its steps were so far.

    ``ready``: a pass ended at the boundary, so that its gradients are what a step would take. ``lost``:
    passes whose gradients were overwritten since the last step; ``most_lost``: of the worst step, and all of
    it. ``short``: steps of fewer passes than they are divided by, but for the last of a data loader;
    ``whole``: of enough. ``asked``: calls of the ``step`` of Accelerate's optimizer, which does nothing under
    DeepSpeed.
    """

    def __init__(self) -> None:
        self.passes = self.lost = self.steps = self.lossy = 0
        self.short = self.whole = self.asked = 0
        self.ready = self.is_divided = self.is_last_of_loader = self.by_accelerate = False
        self.most_lost = (0, 0)
        self.most_passes = self.accumulation = self.stage = 0
        self.ran: dict[str, Any] = {}

    def begin(self) -> None:
        """A step was made, or the script gave the gradients up."""
        self.passes = self.lost = 0
        self.ready = False


class TrainingFacts:
    """Counts what a script does with its engines; costs some microseconds for each backward pass."""

    def __init__(self) -> None:
        self._windows: weakref.WeakKeyDictionary[Any, _Window] = weakref.WeakKeyDictionary()
        self._engines: list[tuple[Callable[[], Any], set[int]]] = []
        self._clipping: dict[str, Any] | None = None
        self._asked: list[dict[str, Any]] = []
        self._saved = SavedWeights(self._living)

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """Hooks by the module after whose import they are put."""
        return {
            "deepspeed.runtime.engine": lambda module: self._hook_engine(module.DeepSpeedEngine),
            "deepspeed.runtime.zero.stage_1_and_2": self._hook_optimizer,
            "accelerate.accelerator": lambda module: self._hook_accelerator(module.Accelerator),
            "accelerate.utils.dataclasses": self._hook_plugins,
            "accelerate.utils.deepspeed": self._hook_wrappers,
            **self._saved.hooks(),
            "torch": self._hook_torch,
        }

    def account(self) -> dict[str, Any]:
        """What is known, for a rank's records; empty where there is nothing to say."""
        windows = [window for window in self._windows.values() if window.steps]
        facts: dict[str, Any] = {}
        for window in windows:
            if window.lossy:
                lost, passes = window.most_lost
                facts["lost"] = {"passes": passes, "lost": lost, "steps": window.lossy, "of": window.steps,
                                 "stage": window.stage}  # fmt: skip
            if window.by_accelerate and 0 < 2 * window.asked <= window.steps:
                facts["unasked"] = {"steps": window.steps, "asked": window.asked}
            elif window.short and not window.whole:
                facts["short"] = {"passes": window.most_passes, "accumulation": window.accumulation,
                                  "steps": window.short}  # fmt: skip
        if self._clipping is not None:
            facts["clipping"] = self._clipping
        if self._asked and len(windows) == 1:
            facts["asked"] = [{**one, "engine": windows[0].ran.get(one["setting"])} for one in self._asked]
        if saves := self._saved.account():
            facts["saves"] = saves
        return {"training": facts} if facts else {}

    def _living(self) -> list[Any]:
        return [engine for reference, _ in self._engines if (engine := reference()) is not None]

    def _window(self, optimizer: Any) -> _Window:
        if optimizer not in self._windows:
            self._windows[optimizer] = _Window()
        return self._windows[optimizer]

    # ---- the engine

    def _hook_engine(self, engine: Any) -> None:
        def made(this: Any, *_: Any) -> None:
            parameters = {id(parameter) for parameter in this.module.parameters()}
            self._engines.append((weakref.ref(this), parameters))

        def divides(this: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            window = self._window(this.optimizer)
            window.is_divided = bool(args[3] if len(args) > 3 else kwargs.get("scale_wrt_gas", True))
            state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
            if state is not None and getattr(state, "_shared_state", None):
                window.is_last_of_loader = bool(state().end_of_dataloader)

        _wrap(engine, "__init__", after=made)
        _wrap(engine, "backward", before=divides)
        _wrap(engine, "_backward_epilogue", after=lambda this, *_: self._pass_done(this))
        _wrap(engine, "_take_model_step", before=lambda this, *_: self._step(this))
        self._saved.hook_engine(engine)

    def _pass_done(self, engine: Any) -> None:
        """A backward pass ended. ZeRO-1 and 2 put each pass that ends at the boundary in the place of what
        the one before left for the step (0.19.8, runtime/zero/stage_1_and_2.py:1046). With optimizer offload
        only the first such pass is not kept for the next (2166)."""
        optimizer = engine.optimizer
        window = self._window(optimizer)
        at_boundary = bool(engine.is_gradient_accumulation_boundary())
        overwrites = hasattr(optimizer, "all_grad_tensors") and not getattr(engine, "zenflow", False)
        if at_boundary and overwrites:
            if window.ready:
                window.lost = 1 if optimizer.cpu_offload else window.passes
            first = optimizer.cpu_offload and window.passes == 0
            window.ready |= first or any(part is not None for part in optimizer.averaged_gradients.values())
        window.passes += 1

    def _step(self, engine: Any) -> None:
        window = self._window(engine.optimizer)
        if not window.passes:  # a version without these hooks, or the middle of a pipeline
            return
        window.steps += 1
        window.ran = window.ran or settings(engine)
        window.stage = int(engine.zero_optimization_stage())
        window.accumulation = int(engine.gradient_accumulation_steps())
        window.most_passes = max(window.most_passes, window.passes)
        manages = getattr(engine, "managed_gradient_accumulation", lambda: True)()
        is_divided = window.is_divided and manages and not getattr(engine, "pipeline_parallelism", False)
        if window.passes >= window.accumulation or not is_divided:
            window.whole += 1
        else:
            window.short += not window.is_last_of_loader
        if window.lost:
            window.lossy += 1
            window.most_lost = max(window.most_lost, (window.lost, window.passes))
        window.begin()

    def _hook_optimizer(self, module: ModuleType) -> None:
        """Between two passes the script gives up what the first left."""
        _wrap(module.DeepSpeedZeroOptimizer, "zero_grad", after=lambda this, *_: self._window(this).begin())

    # ---- Accelerate

    def _hook_wrappers(self, module: ModuleType) -> None:
        def asked(this: Any, *_: Any) -> None:
            self._window(this.optimizer).asked += 1

        def stepped(this: Any, *_: Any) -> None:
            self._window(this.engine.optimizer).by_accelerate = True

        _wrap(module.DeepSpeedOptimizerWrapper, "step", before=asked)
        _wrap(module.DeepSpeedEngineWrapper, "backward", before=stepped)

    def _hook_accelerator(self, accelerator: Any) -> None:
        self._watch_asked(accelerator)
        for name in _CLIPPING:
            self._watch_clipping(accelerator, name, is_method=True)

    def _hook_plugins(self, module: ModuleType) -> None:
        for name in ("DeepSpeedPlugin", "GradientAccumulationPlugin"):
            self._watch_asked(getattr(module, name))

    def _watch_asked(self, owner: Any) -> None:
        """Note the keywords by which a script's code sets what a configuration sets too."""

        def made(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            frame = sys._getframe(2)
            if str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
                return  # a Trainer's, which takes them from its arguments
            for keyword, value in kwargs.items():
                setting = BY_CALL.get((owner.__name__, keyword))
                value = getattr(value, "value", value)
                if setting is None or not isinstance(value, str | int) or value in _NOT_PLANNED:
                    continue
                self._asked.append({
                    "setting": setting.name, "code": value, "call": f"{owner.__name__}({keyword}={value!r})",
                    "location": f"{_as_typed(frame.f_code.co_filename)}:{frame.f_lineno}",
                })  # fmt: skip

        _wrap(owner, "__init__", after=made)

    # ---- clipping

    def _hook_torch(self, torch: ModuleType) -> None:
        self._saved.hooks()["torch"](torch)
        for name in _CLIPPING:
            self._watch_clipping(torch.nn.utils.clip_grad, name, is_method=False)
            setattr(torch.nn.utils, name, getattr(torch.nn.utils.clip_grad, name))

    def _watch_clipping(self, owner: Any, name: str, *, is_method: bool) -> None:
        original = getattr(owner, name)

        @in_place_of(owner, name)
        def clip(*args: Any, **kwargs: Any) -> Any:
            if self._engines:
                with contextlib.suppress(Exception):
                    args, kwargs = self._clips(name, args, kwargs, first=int(is_method))
            return original(*args, **kwargs)

    def _clips(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Note a call on an engine's weights that changes nothing, and give it arguments that are not used
        up. PyTorch's works where gradients still lie beside the weights, as those of ZeRO-0 in fp32 do;
        Accelerate's never does under DeepSpeed (1.15.0, accelerator.py:3023)."""
        named = len(args) <= first
        given = kwargs["parameters"] if named else args[first]
        parameters = [given] if hasattr(given, "grad") else list(given)
        if named:
            kwargs = {**kwargs, "parameters": parameters}
        else:
            args = (*args[:first], parameters, *args[first + 1 :])
        limit = kwargs.get("max_norm" if "norm" in name else "clip_value")
        limit = float(args[first + 1] if limit is None else limit)
        engine = self._engine_of(parameters)
        works = not first and any(parameter.grad is not None for parameter in parameters)
        if engine is not None and not works and math.isfinite(limit) and self._clipping is None:
            frame = sys._getframe(2)
            ran = float(engine.gradient_clipping())
            if "norm" not in name or limit != ran:
                self._clipping = {
                    "call": f"{name}({limit:g})", "limit": limit, "ran": ran, "is_norm": "norm" in name,
                    "location": f"{_as_typed(frame.f_code.co_filename)}:{frame.f_lineno}",
                    "by_trainer": str(frame.f_globals.get("__name__")).startswith("transformers."),
                }  # fmt: skip
        return args, kwargs

    def _engine_of(self, parameters: Iterable[Any]) -> Any:
        for reference, own in self._engines:
            engine = reference()
            if engine is not None and any(id(parameter) in own for parameter in parameters):
                return engine
        return None


def _as_typed(path: str) -> str:
    """A path as a user writes it, where the file lies in the working folder."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    return path


def _wrap(
    owner: Any, name: str, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    """Look at a method's calls; one that a version lacks is left out, and nothing here reaches the script."""
    original = owner.__dict__.get(name)
    if original is None:
        return

    @in_place_of(owner, name)
    def wrapped(this: Any, *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            with contextlib.suppress(Exception):
                before(this, (this, *args), kwargs)
        result = original(this, *args, **kwargs)
        if after is not None:
            with contextlib.suppress(Exception):
                after(this, (this, *args), kwargs)
        return result
