"""Hooks around the calls that are a phase of their own: making engines, evaluating, generating, saving.

A Trainer evaluates with the model inside the engine, generates with ``model.generate`` and saves with
``save_model``: the engine sees nothing of it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from zerokit.instrument.post_import import Hook
from zerokit.launcher.rank.probe import Probe

ENGINE_SAVES = (
    "save_checkpoint",
    "save_16bit_model",
    "save_fp16_model",
    "_zero3_consolidated_16bit_state_dict",
)
"""Methods of DeepSpeed's engine (0.19.8, runtime/engine.py:4869, 5631, 5702, 5707)."""

_METHODS: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "deepspeed.runtime.hybrid_engine": (("DeepSpeedHybridEngine", "generate", ("generate",)),),
    "transformers.trainer": (
        ("Trainer", "eval", ("evaluate", "predict", "evaluation_loop", "prediction_loop")),
        ("Trainer", "save", ("save_model", "_save_checkpoint")),
    ),
    "transformers.generation.utils": (("GenerationMixin", "generate", ("generate",)),),
    "transformers.generation.continuous_batching.continuous_api": (
        ("ContinuousMixin", "generate", ("generate_batch",)),
    ),
    "transformers.modeling_utils": (("PreTrainedModel", "save", ("save_pretrained",)),),
    "peft.peft_model": (("PeftModel", "save", ("save_pretrained",)),),
    "accelerate.accelerator": (("Accelerator", "save", ("save_state", "save_model", "get_state_dict")),),
    "vllm.entrypoints.llm": (("LLM", "generate", ("generate", "chat")),),
}
_FUNCTIONS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "deepspeed": (("init", ("initialize", "init_inference")),),
    "safetensors.torch": (("save", ("save_file", "save_model")),),
}


def hooks(probe: Probe) -> dict[str, Hook]:
    """A hook for each module that holds such calls; torch's are put by :func:`hook_torch`."""
    result: dict[str, Hook] = {}
    for name, methods in _METHODS.items():
        result[name] = functools.partial(_hook_methods, probe, methods)
    for name, functions in _FUNCTIONS.items():
        result[name] = functools.partial(_hook_functions, probe, functions)
    return result


def hook_torch(probe: Probe, torch: ModuleType) -> None:
    """What scripts without a Trainer save with."""
    around(probe, torch, "save", "save", when=_not_a_storage)


def _not_a_storage(arguments: tuple[Any, ...]) -> bool:
    """Pickling a tensor, as a cache of data does, saves its storage in memory (torch/storage.py, 2.13.0)."""
    storage = sys.modules["torch"].storage
    return not (arguments and isinstance(arguments[0], (storage.UntypedStorage, storage.TypedStorage)))


def _hook_methods(
    probe: Probe, methods: tuple[tuple[str, str, tuple[str, ...]], ...], module: ModuleType
) -> None:
    for owner, phase, names in methods:
        around(probe, getattr(module, owner, None), phase, *names)
    if module.__name__ == "accelerate.accelerator":
        around(probe, module.Accelerator, "init", "prepare", when=_has_model)
    if module.__name__ == "transformers.trainer":
        _tell_batches(probe, module.Trainer)


def _tell_batches(probe: Probe, trainer: Any) -> None:
    """What a Trainer feeds is in its arguments, which may have changed since DeepSpeed's were filled."""
    original = trainer.train

    @functools.wraps(original)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        if probe.is_rank:
            with contextlib.suppress(Exception):
                probe.observed.trainer_began(int(self.args.train_batch_size))
        return original(self, *args, **kwargs)

    trainer.train = train


def _hook_functions(
    probe: Probe, functions: tuple[tuple[str, tuple[str, ...]], ...], module: ModuleType
) -> None:
    for phase, names in functions:
        around(probe, module, phase, *names)


def _has_model(arguments: tuple[Any, ...]) -> bool:
    """Preparing a data loader alone, as an evaluation does, makes no engine."""
    module = sys.modules["torch"].nn.Module
    return any(isinstance(argument, module) for argument in arguments)


def around(
    probe: Probe,
    owner: Any,
    phase: str,
    *names: str,
    when: Callable[[tuple[Any, ...]], bool] = lambda arguments: True,
) -> None:
    """Make calls of these methods or functions the phase; those that ``owner`` has not are left out."""
    for name in names:
        original = vars(owner).get(name) if owner is not None else None
        if callable(original):
            setattr(owner, name, _in_phase(probe, original, phase, when))


def _in_phase(
    probe: Probe, original: Callable[..., Any], phase: str, when: Callable[[tuple[Any, ...]], bool]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before = probe.begin(phase) if when(args) else None
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            probe.finish(before, error)
            raise
        probe.finish(before)
        return result

    return wrapped
