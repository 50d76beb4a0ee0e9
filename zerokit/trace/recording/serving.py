"""A prompt and one more token of a built model under fake tensors, as ``generate`` of Transformers runs them.

``GenerationMixin.generate`` (generation/utils.py, 5.23.0) cannot run under fake tensors, since it looks at
values. What its greedy loop (``_sample``, line 3122) holds and calls is done here, by its own helpers where
it has them: prompt, position ids, a ``DynamicCache`` that grows by concatenation, logits of the last token
only, and their fp32 copy that lives until the next step has made its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from zerokit.domain.profile import Variant
from zerokit.errors import InputError
from zerokit.trace.building.build import BuiltModel, transformers_on_gpu
from zerokit.trace.recording.kernels import cuda_kernels
from zerokit.trace.recording.record import LABELS, Hooks, make_inputs, materialise, replace_model
from zerokit.trace.recording.shapes import Remembering
from zerokit.trace.recording.storage import StorageTracker, TraceEvent


class Generation:
    """The state of a greedy generation."""

    def __init__(self, model: Any, prompt: torch.Tensor, mask: torch.Tensor, padding: bool) -> None:
        from transformers import DynamicCache

        parameters = inspect.signature(model.forward).parameters
        self.model = model
        self.tokens = prompt
        self.logits: torch.Tensor | None = None
        self.settings: dict[str, Any] = {"attention_mask": mask, "use_cache": True}
        if "position_ids" in parameters:
            position_ids = model._prepare_position_ids_for_generation(prompt, self.settings)
            self.settings["position_ids"] = position_ids
        if not padding and "_mask_length" in model.generate.__wrapped__.__code__.co_names:
            # this `generate` drops a mask without padding (it notes its length then)
            self.settings["attention_mask"] = None
        if "logits_to_keep" in parameters:
            self.settings["logits_to_keep"] = 1
        self.cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        self.settings["past_key_values"] = self.cache
        self.given = list(self.settings.values())  # generate's own variables keep them to the end

    def step(self) -> None:
        """A forward pass over what the cache does not have yet, and the token it gives."""
        first = self.logits is None
        inputs = self.model.prepare_inputs_for_generation(
            self.tokens,
            next_sequence_length=None if first else 1,
            is_first_iteration=first,
            **self.settings,
        )
        outputs = self.model(**inputs, return_dict=True)
        if first:  # a local of _prefill
            del inputs
        self.settings = self.model._update_model_kwargs_for_generation(outputs, self.settings)
        self.logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32)
        chosen = torch.argmax(self.logits, dim=-1)
        self.tokens = torch.cat([self.tokens, chosen[:, None]], dim=-1)

    def held(self) -> Iterator[torch.Tensor]:
        """What lives between two steps, the cache left out."""
        values = [self.tokens, self.logits, *self.settings.values(), *self.given]
        return (value for value in values if isinstance(value, torch.Tensor))

    def cached(self) -> Iterator[torch.Tensor]:
        """The tensors of the cache."""
        for layer in self.cache.layers:
            for value in vars(layer).values():
                if isinstance(value, torch.Tensor) and value.numel() > 1:
                    yield value


def _decoding(model: Any) -> None:
    """Let experts run as in decoding: one product each, on copies of the weights chosen
    (``_optimize_model_for_decode``, which does so on every device but the CPU that a trace is on)."""
    kinds = model.get_experts_implementation() if hasattr(model, "get_experts_implementation") else {}
    if isinstance(kinds, dict) and "grouped_mm" in kinds.values():
        model.set_experts_implementation(
            {k: "batched_mm" if v == "grouped_mm" else v for k, v in kinds.items()}
        )


class _Tracer:
    """Traces passes of one model, each at its own size."""

    def __init__(self, built: BuiltModel, variant: Variant) -> None:
        model = built.model
        materialise(model)
        model.tie_weights()
        model.eval()
        for stack in built.stacks:  # a cache has its layers by their number
            for position, layer in enumerate(model.get_submodule(stack.path).children()):
                for module in layer.modules():
                    if "layer_idx" in vars(module):
                        module.layer_idx = position
        self.model: Any = model
        self.built = replace_model(built, self.model)
        self.variant = variant
        self.hooks = Hooks(StorageTracker(), self.model)

    def _tracker(self) -> StorageTracker:
        """A new trace, which the hooks write into from now on."""
        tracker = self.hooks.tracker = StorageTracker()
        tracker.ignore([*self.model.parameters(), *self.model.buffers()])
        tracker.mark("phase", "forward")
        return tracker

    def prompt(self, batch: int, length: int) -> tuple[list[TraceEvent], frozenset[int]]:
        """The pass over the prompt, up to the first token; and the storages of the cache."""
        inputs = make_inputs(self.built, batch, length, self.variant)
        inputs = {key: value for key, value in inputs.items() if key not in LABELS}
        if self.built.head != "causal":
            with self._tracker() as tracker:
                tracker.count(inputs.values())
                outputs = self.model(**inputs)
                tracker.mark("phase", "end")
            del outputs
            return list(tracker.events), frozenset()
        mask = torch.ones(batch, length, dtype=torch.long)
        with self._tracker() as tracker:
            tracker.count([*inputs.values(), mask])
            generation = Generation(self.model, inputs["input_ids"], mask, self.variant.padding)
            generation.step()
            tracker.mark("phase", "end")
        return list(tracker.events), tracker.numbers(generation.cached())

    def token(self, batch: int, length: int) -> tuple[list[TraceEvent], frozenset[int]]:
        """The step after which the cache is so long, having grown step by step; and its storages."""
        prompt = torch.zeros(batch, length - 2, dtype=torch.long)
        mask = torch.ones_like(prompt)
        generation = Generation(self.model, prompt, mask, self.variant.padding)
        generation.step()
        generation.step()
        with self._tracker() as tracker:
            tracker.hold(generation.cached())
            tracker.count([prompt, mask, *generation.held()])
            generation.step()
            tracker.mark("phase", "end")
        return list(tracker.events), tracker.numbers(generation.cached())


def record_serving(
    built: BuiltModel, variant: Variant, points: list[tuple[int, int]]
) -> tuple[list[list[TraceEvent]], frozenset[int]]:
    """Trace a step of inference at each (batch, context) of ``points``.

    Returns:
        The traces, and the numbers of the storages that are the key-value cache afterwards.

    Raises:
        InputError: the model generates in another way than by a decoder over its own cache.
    """
    if "seq2seq" in built.head:
        raise InputError(f"inference of a {built.head} model is not traced")
    with (
        Remembering(),
        torch.no_grad(),
        transformers_on_gpu(variant.padding),
        cuda_kernels(),
    ):
        tracer = _Tracer(built, variant)
        if variant.phase == "decode":
            _decoding(tracer.model)
        passes = [(tracer.token if variant.phase == "decode" else tracer.prompt)(*size) for size in points]
    return [events for events, _ in passes], passes[0][1]
