"""Generation: its peak is at the last token, so the tokens in between are not made.

The prompt is filled in truly with one token; then the cache is stretched to its length before the last two
tokens, which are made again by transformers' own loop.
"""

from __future__ import annotations

import copy
import functools
from types import ModuleType
from typing import Any

import torch

from zerokit.rehearsal.process import factories
from zerokit.rehearsal.process.context import Context

_FEW = 4
"""Generations up to here run whole."""
_TOKEN = 7


def sampling(context: Context, module: ModuleType) -> None:
    """Diffusers: every step of a sampling allocates alike, so a few stand for all."""
    base = module.SchedulerMixin
    shorten = functools.partial(_fewer_steps, context)

    def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        original = cls.__dict__.get("set_timesteps")
        if original is not None:
            cls.set_timesteps = shorten(original)

    base.__init_subclass__ = classmethod(init_subclass)


def _fewer_steps(context: Context, original: Any) -> Any:
    @functools.wraps(original)
    def set_timesteps(self: Any, num_inference_steps: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(num_inference_steps, int) and num_inference_steps > _FEW:
            context.machine.stub(f"sampling of {num_inference_steps} steps: {_FEW} are made")
            num_inference_steps = _FEW
        return original(self, num_inference_steps, *args, **kwargs)

    return set_timesteps


def generate(context: Context, module: ModuleType) -> None:
    """Wrap ``GenerationMixin.generate``."""
    cls = module.GenerationMixin
    original = cls.generate

    @functools.wraps(original)
    def wrapped(
        self: Any, inputs: Any = None, *args: Any, generation_config: Any = None, **kwargs: Any
    ) -> Any:
        with context.phases.inside("generate"):
            call = functools.partial(original, self)
            return _shortened(context, call, self, inputs, args, generation_config, kwargs)

    cls.generate = wrapped


def _shortened(
    context: Context, call: Any, model: Any, inputs: Any, args: Any, config: Any, kwargs: dict[str, Any]
) -> Any:
    ids = inputs if inputs is not None else kwargs.get("input_ids")
    config = config or model.generation_config
    new_tokens = kwargs.get("max_new_tokens") or getattr(config, "max_new_tokens", None)
    if ids is None or not new_tokens or new_tokens <= _FEW:
        return call(inputs, *args, generation_config=config, **kwargs)
    context.machine.stub(f"generation of {new_tokens} tokens: the first and the last ones are made")
    kwargs = {name: value for name, value in kwargs.items() if name != "max_new_tokens"}
    cache = None
    if kwargs.get("past_key_values") is None and _uses_cache(config, kwargs):
        first = copy.deepcopy(config)
        first.max_new_tokens, first.return_dict_in_generate = 2, True
        cache = getattr(call(inputs, *args, generation_config=first, **kwargs), "past_key_values", None)
    stretches = _can_stretch(cache)
    last_tokens = 2 if stretches else _FEW
    last = copy.deepcopy(config)
    last.max_new_tokens = last_tokens
    more = new_tokens - last_tokens
    longer = _padded(ids, _TOKEN, more)
    if inputs is not None:
        inputs = longer
    else:
        kwargs["input_ids"] = longer
    if kwargs.get("attention_mask") is not None:
        kwargs["attention_mask"] = _padded(kwargs["attention_mask"], 1, more)
    if stretches:
        _stretch(cache, ids.shape[1] + more - 1)
        kwargs["past_key_values"] = cache
    return call(inputs, *args, generation_config=last, **kwargs)


def _uses_cache(config: Any, kwargs: dict[str, Any]) -> bool:
    return kwargs.get("use_cache", getattr(config, "use_cache", True)) is not False


def _padded(tensor: torch.Tensor, value: int, count: int) -> torch.Tensor:
    more = factories.full((tensor.shape[0], count), value, dtype=tensor.dtype, device=tensor.device)
    return torch.cat([tensor, more], 1)


def _can_stretch(cache: Any) -> bool:
    layers: Any = getattr(cache, "layers", None)
    return bool(layers) and all(
        type(layer).__name__ == "DynamicLayer" and layer.is_initialized for layer in layers
    )


def _stretch(cache: Any, length: int) -> None:
    for layer in cache.layers:
        for name in ("keys", "values"):
            tensor = getattr(layer, name)
            setattr(layer, name, tensor.new_empty(*tensor.shape[:-2], length, tensor.shape[-1]))
