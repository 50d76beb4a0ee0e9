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

from zerokit.instrument.phases import in_place_of
from zerokit.rehearsal.process import factories
from zerokit.rehearsal.process.phases import Context

_FEW = 4
"""Generations up to here run whole."""
_TOKEN = 7
_GROWING_LAYERS = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}
"""Of a cache: with keys and values of each token, or of a window's."""
_CONSTANT_LAYERS = {"LinearAttentionLayer"}


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

    @in_place_of(cls, "generate")
    def wrapped(
        self: Any, inputs: Any = None, *args: Any, generation_config: Any = None, **kwargs: Any
    ) -> Any:
        call = functools.partial(original, self)
        return _shortened(context, call, self, inputs, args, generation_config, kwargs)


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
    if kwargs.get("past_key_values") is None and (
        kwargs.get("use_cache", getattr(config, "use_cache", True)) is not False
    ):
        first = copy.deepcopy(config)
        first.max_new_tokens, first.return_dict_in_generate = 2, True
        cache = getattr(call(inputs, *args, generation_config=first, **kwargs), "past_key_values", None)
    stretches = can_stretch(cache)
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
        stretch(cache, ids.shape[1] + more - 1)
        kwargs["past_key_values"] = cache
    return call(inputs, *args, generation_config=last, **kwargs)


def _padded(tensor: torch.Tensor, value: int, count: int) -> torch.Tensor:
    more = factories.full((tensor.shape[0], count), value, dtype=tensor.dtype, device=tensor.device)
    return torch.cat([tensor, more], 1)


def can_stretch(cache: Any) -> bool:
    """Whether all layers of a cache are known to be as large as the tokens, the window or the model says."""
    names = [type(layer).__name__ for layer in getattr(cache, "layers", None) or ()]
    growing = [layer for layer in getattr(cache, "layers", ()) if type(layer).__name__ in _GROWING_LAYERS]
    return (
        bool(growing)
        and set(names) <= _GROWING_LAYERS | _CONSTANT_LAYERS
        and all(layer.is_initialized for layer in growing)
    )


def stretch(cache: Any, length: int) -> None:
    """As if so many tokens had been seen. A layer with a window keeps a view of all but the oldest token that
    the last one looked at (``DynamicSlidingWindowLayer.update``)."""
    for layer in cache.layers:
        if type(layer).__name__ not in _GROWING_LAYERS:
            continue
        window = layer.sliding_window if layer.is_sliding else None
        if window is not None:
            layer.cumulative_length = length
        for name in ("keys", "values"):
            tensor = getattr(layer, name)
            rows = length if window is None else min(length, window)
            stretched = tensor.new_empty(*tensor.shape[:-2], rows, tensor.shape[-1])
            setattr(layer, name, stretched if window is None else stretched[:, :, -window + 1 :, :])
