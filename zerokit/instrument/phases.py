"""Calls of libraries that are a phase of their own: making engines, evaluating, generating, saving.

A launch and a rehearsal put the same hooks around them. A Trainer evaluates with the model inside the engine,
generates with ``model.generate`` and saves with ``save_model``: the engine sees nothing of it. Forward,
backward and step are the engine's and the optimizer's own, which each of the two follows for itself.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from zerokit.instrument.post_import import Hook

Inside = Callable[[str], AbstractContextManager[Any]]
"""What makes a block one phase of a run."""
Arguments = tuple[Any, ...]


def _always(arguments: Arguments) -> bool:
    return True


def _has_model(arguments: Arguments) -> bool:
    """Preparing a data loader alone, as an evaluation does, makes no engine."""
    module = sys.modules["torch"].nn.Module
    return any(isinstance(argument, module) for argument in arguments)


def _not_a_storage(arguments: Arguments) -> bool:
    """Pickling a tensor, as a cache of data does, saves its storage in memory (torch/storage.py, 2.13.0)."""
    storage = sys.modules["torch"].storage
    return not (arguments and isinstance(arguments[0], (storage.UntypedStorage, storage.TypedStorage)))


class Calls(NamedTuple):
    """Functions of a module, or methods of its class ``owner``, that are ``phase``."""

    phase: str
    owner: str
    names: tuple[str, ...]
    when: Callable[[Arguments], bool] = _always


CALLS: Mapping[str, tuple[Calls, ...]] = MappingProxyType({
    "accelerate.accelerator": (
        Calls("save", "Accelerator", ("save_state", "save_model", "get_state_dict")),
        Calls("init", "Accelerator", ("prepare",), _has_model),
    ),
    "deepspeed": (Calls("init", "", ("initialize", "init_inference")),),
    # 0.19.8, runtime/engine.py:4869, 5631, 5702, 5707
    "deepspeed.runtime.engine": (
        Calls("init", "DeepSpeedEngine", ("__init__",)),
        Calls("save", "DeepSpeedEngine", (
            "save_checkpoint", "save_16bit_model", "save_fp16_model", "_zero3_consolidated_16bit_state_dict",
        )),
    ),
    "deepspeed.runtime.hybrid_engine": (Calls("generate", "DeepSpeedHybridEngine", ("generate",)),),
    "deepspeed.runtime.pipe.engine": (Calls("eval", "PipelineEngine", ("eval_batch", "inference_batch")),),
    "peft.peft_model": (Calls("save", "PeftModel", ("save_pretrained",)),),
    "safetensors.torch": (Calls("save", "", ("save_file", "save_model")),),
    "torch": (Calls("save", "", ("save",), _not_a_storage),),  # what scripts without a Trainer save with
    "transformers.generation.continuous_batching.continuous_api": (
        Calls("generate", "ContinuousMixin", ("generate_batch",)),
    ),
    "transformers.generation.utils": (Calls("generate", "GenerationMixin", ("generate",)),),
    "transformers.modeling_utils": (Calls("save", "PreTrainedModel", ("save_pretrained",)),),
    "transformers.trainer": (
        Calls("eval", "Trainer", ("evaluate", "predict", "evaluation_loop", "prediction_loop")),
        Calls("save", "Trainer", ("save_model", "_save_checkpoint")),
    ),
    "vllm.entrypoints.llm": (Calls("generate", "LLM", ("generate", "chat")),),
})  # fmt: skip
"""By the module after whose import they are hooked; what its version has not is left out."""


def hooks(inside: Inside) -> dict[str, Hook]:
    """A hook for each module that holds such calls."""
    return {name: functools.partial(hook, inside) for name in CALLS}


def hook(inside: Inside, module: ModuleType) -> None:
    """Make the calls of a module that was imported their phases."""
    for calls in CALLS[module.__name__]:
        owner = getattr(module, calls.owner, None) if calls.owner else module
        for name in calls.names:
            original = vars(owner).get(name) if owner is not None else None
            if callable(original):
                setattr(owner, name, _in_phase(inside, original, calls))


def _in_phase(inside: Inside, original: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not calls.when(args):
            return original(*args, **kwargs)
        with inside(calls.phase):
            return original(*args, **kwargs)

    return wrapped


def within(cls: Any, name: str, manager: Callable[[], AbstractContextManager[Any]]) -> None:
    """Each call of a class's method runs within a context of its own."""
    _replace(cls, name, lambda self: manager())


def before(cls: Any, name: str, action: Callable[[], None]) -> None:
    """``action`` comes before each call of a class's method."""

    def acting(self: Any) -> AbstractContextManager[Any]:
        action()
        return nullcontext()

    _replace(cls, name, acting)


def after(cls: Any, name: str, action: Callable[[Any], None]) -> None:
    """``action`` gets the object after each call of a class's method that raised nothing."""

    @contextmanager
    def acting(self: Any) -> Iterator[None]:
        yield
        action(self)

    _replace(cls, name, acting)


def in_place_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of a function that takes the place of one of a class or a module, and looks like it."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = functools.wraps(getattr(owner, name))(function)
        setattr(owner, name, wrapped)
        return wrapped

    return put


def _replace(cls: Any, name: str, context: Callable[[Any], AbstractContextManager[Any]]) -> None:
    original = getattr(cls, name, None)
    if original is None:
        return

    @in_place_of(cls, name)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with context(self):
            return original(self, *args, **kwargs)
