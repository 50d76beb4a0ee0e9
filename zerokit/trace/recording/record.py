"""One forward and backward of a built model under fake tensors, as a list of events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from zerokit.domain.profile import Variant
from zerokit.trace.building.build import BuiltModel, transformers_on_gpu
from zerokit.trace.building.zero3_linear import zero3_linear
from zerokit.trace.recording.autocast import cuda_lists
from zerokit.trace.recording.image_inputs import image_inputs, is_known_index
from zerokit.trace.recording.kernels import cuda_kernels
from zerokit.trace.recording.known_values import KnownValues
from zerokit.trace.recording.offloading import offloading
from zerokit.trace.recording.selective import selective_checkpointing
from zerokit.trace.recording.shapes import Remembering
from zerokit.trace.recording.storage import StorageTracker, TraceEvent


class _Backward(torch.autograd.Function):
    """Identity whose backward calls a function: where DeepSpeed puts its ZeRO-3 backward hooks
    (runtime/zero/parameter_offload.py ``PreBackwardFunctionForModule``, ``PostBackwardFunctionModule``)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, call: Callable[[], None]) -> Any:
        ctx.call = call
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        ctx.call()
        return grad, None


LEAF_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)
"""What DeepSpeed treats as one module at stage 3 unless told otherwise
(runtime/zero/leaf_module_config.py:11, 0.19.8)."""


def leaf_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules inside which ZeRO-3 puts no hooks, by name."""

    def path(module: nn.Module) -> str:
        return f"{type(module).__module__}.{type(module).__qualname__}"

    return {name: module for name, module in model.named_modules() if path(module) in LEAF_CLASSES}


class Hooks:
    """Mark gradients as they become ready, and module forwards and backwards."""

    def __init__(self, tracker: StorageTracker, model: nn.Module, modules: bool = True) -> None:
        self.tracker = tracker
        self.kept: set[str] = set()  # whose gradients stay until their leaf module's backward is over
        self.handles: list[RemovableHandle] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(self._on_gradient(name))
                self.handles.append(handle)
        if modules:
            self.hook_modules(model)

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self.handles:
            handle.remove()

    def hook_modules(self, model: nn.Module) -> None:
        """Hook modules as ZeRO-3 does: the functions that it puts into the graph move when tensors die."""
        leaves = leaf_modules(model)
        inside = tuple(f"{name}." for name in leaves)
        for name, module in model.named_modules():
            if not name.startswith(inside):
                self._hook_module(name, module)
        for name, module in leaves.items():
            self._hook_leaf(name, module)

    def _hook_leaf(self, name: str, leaf: nn.Module) -> None:
        """``reduce_leaf_module_grads`` (runtime/zero/stage3.py:1534)."""
        trained = {f"{name}.{key}": p for key, p in leaf.named_parameters() if p.requires_grad}
        self.kept |= set(trained)

        def backward(*_: Any) -> None:
            for key, parameter in trained.items():
                self.tracker.mark("grad", key)
                parameter.grad = None

        if trained:
            self.handles.append(leaf.register_full_backward_hook(backward))

    def _on_gradient(self, name: str) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            if name in self.kept:
                self.tracker.mark("kept", name)
                return
            self.tracker.mark("grad", name)
            parameter.grad = None  # what happens to it now is DeepSpeed's doing

        return hook

    def _hook_module(self, name: str, module: nn.Module) -> None:
        state = {"forwards": 0, "inputs": 0}

        def before_backward() -> None:
            if state["forwards"] > 0:
                self.tracker.mark("bwd_pre", name)
                state["forwards"] -= 1

        def after_backward() -> None:
            state["inputs"] -= 1
            if state["inputs"] == 0:
                self.tracker.mark("bwd_post", name)

        def wrap(value: Any, call: Callable[[], None], count: str) -> Any:
            if isinstance(value, torch.Tensor):
                if value.requires_grad:
                    state[count] += 1
                    return _Backward.apply(value, call)
                return value
            if isinstance(value, tuple) and not hasattr(value, "_fields"):
                return tuple(wrap(item, call, count) for item in value)
            if isinstance(value, list):
                return [wrap(item, call, count) for item in value]
            if isinstance(value, dict):
                for key, item in value.items():
                    value[key] = wrap(item, call, count)
            return value

        def pre_forward(_: nn.Module, args: Any) -> Any:
            self.tracker.mark("fwd_pre", name)
            state["inputs"] = 0
            return wrap(args, after_backward, "inputs")

        def post_forward(_: nn.Module, args: Any, output: Any) -> Any:
            self.tracker.mark("fwd_post", name)
            return wrap(output, before_backward, "forwards")

        self.handles.append(module.register_forward_pre_hook(pre_forward))
        self.handles.append(module.register_forward_hook(post_forward))


LABELS = ("labels", "start_positions", "end_positions")
"""Of a batch, what only the loss reads."""


def make_inputs(
    built: BuiltModel, micro_batch: int, seq_len: int, variant: Variant
) -> dict[str, torch.Tensor]:
    """A training batch of the kind the head takes. Shapes (micro_batch, seq_len) of int64, or images."""
    config, padding = built.config, variant.padding
    if variant.images is not None:
        return image_inputs(built.model, config, variant.images, micro_batch, seq_len)
    if built.head == "image-classification":
        size = getattr(config, "image_size", 224)
        channels = getattr(config, "num_channels", 3)
        dtype = next(built.model.parameters()).dtype
        return {
            "pixel_values": torch.zeros(micro_batch, channels, size, size, dtype=dtype),
            "labels": torch.zeros(micro_batch, dtype=torch.long),
        }
    tokens = torch.zeros(micro_batch, seq_len, dtype=torch.long)
    if built.head == "speech-seq2seq":
        frames = 2 * config.max_source_positions
        dtype = next(built.model.parameters()).dtype
        features = torch.zeros(micro_batch, config.num_mel_bins, frames, dtype=dtype)
        return {"input_features": features, "labels": tokens}
    if _looks_for_an_end(built):
        end = torch.full((micro_batch, 1), config.eos_token_id)
        tokens = torch.cat([tokens[:, 1:], end], dim=1)
    inputs = {"input_ids": tokens, **_labels(built.head, tokens)}
    if padding:
        inputs["attention_mask"] = torch.ones(micro_batch, seq_len, dtype=torch.long)
    return inputs


def _looks_for_an_end(built: BuiltModel) -> bool:
    """Whether the model takes its decoder's output where a sequence ends: BART's and T5's classifiers, whose
    forward asks for the values of the ids."""
    return built.head == "sequence-classification" and bool(built.config.is_encoder_decoder)


def _labels(head: str, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the head compares its outputs with. Int64 of shape (micro_batch,), or that of the tokens."""
    if head == "embedding":
        return {}
    one_each = torch.zeros(tokens.shape[0], dtype=torch.long)
    if head == "sequence-classification":
        return {"labels": one_each}
    if head == "question-answering":
        return {"start_positions": one_each, "end_positions": one_each.clone()}
    return {"labels": tokens}


def materialise(model: nn.Module) -> None:
    """Give parameters and buffers on the meta device (fake) storage on the CPU, ties kept.

    ``Module.to_empty`` swaps tensors in place, which fails where something refers weakly to one (an
    embedding with a padding index does).
    """
    parameters: dict[int, nn.Parameter] = {}
    buffers: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in parameters:
                    empty = torch.empty_like(parameter, device="cpu", requires_grad=False)
                    parameters[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                module._parameters[name] = parameters[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                empty = torch.empty_like(buffer, device="cpu")
                module._buffers[name] = buffers.setdefault(id(buffer), empty)


class _EveryLayer:
    """A LayerDrop probability that no drawn tensor is below: tensors have no values here."""

    def __gt__(self, _: object) -> bool:
        return False


def _prepare(built: BuiltModel, variant: Variant) -> nn.Module:
    model = built.model
    materialise(model)
    model.tie_weights()
    model.train()
    for module in model.modules():
        if isinstance(getattr(module, "layerdrop", None), float):
            module.layerdrop = _EveryLayer()
    if variant.checkpointing == "selective":
        selective_checkpointing(model, preserve_rng_state=False, determinism_check="none")
    elif variant.checkpointing != "none":
        if variant.lora_rank:
            model.enable_input_require_grads()
        kwargs: dict[str, Any] = {"preserve_rng_state": False, "use_reentrant": True}
        if variant.checkpointing == "full":
            kwargs |= {"use_reentrant": False, "determinism_check": "none"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    return model


def record(
    built: BuiltModel, variant: Variant, points: list[tuple[int, int]], plain_points: list[tuple[int, int]]
) -> tuple[list[list[TraceEvent]], list[list[TraceEvent]]]:
    """Trace one training step at each (micro_batch, seq_len) of ``points``.

    The user's loop keeps only the loss: ``loss = model(**batch).loss; loss.backward()``.

    Returns:
        With ZeRO-3's hooks around modules; and at ``plain_points`` without, marks of gradients only.
    """
    with (
        Remembering(),
        transformers_on_gpu(variant.padding),
        cuda_kernels(),
        zero3_linear(variant.zero3_linear),
        cuda_lists() if variant.autocast else nullcontext(),
    ):
        model = _prepare(built, variant)
        hooks = Hooks(StorageTracker(), model, modules=False)

        def step(point: tuple[int, int]) -> list[TraceEvent]:
            with _values_known(built, variant):
                inputs = make_inputs(replace_model(built, model), *point, variant)
                return _step(model, hooks, inputs, variant, point[1])

        plain_events = [] if variant.zero3_linear else [step(point) for point in plain_points]
        hooks.hook_modules(model)
        events = [step(point) for point in points]
        hooks.remove()
        return events, plain_events


def _values_known(built: BuiltModel, variant: Variant) -> AbstractContextManager[object]:
    return KnownValues() if variant.images is not None or _looks_for_an_end(built) else nullcontext()


def saved_views(built: BuiltModel, variant: Variant) -> tuple[str, ...]:
    """Parameters of which operators save a view for backward, by the last two parts of their names.

    A view's storage outlives a release by ZeRO-3, which gives the parameter itself another: stacked experts
    that a product takes transposed, or one by one, and Falcon's linear layers stay gathered until their
    backward.
    """
    names: set[str] = set()
    with (
        Remembering(),
        transformers_on_gpu(False),
        cuda_kernels(),
        zero3_linear(True),
    ):
        _prepare(built, Variant())
        owners = {p.untyped_storage()._cdata: (n, p) for n, p in built.model.named_parameters()}

        def pack(saved: torch.Tensor) -> torch.Tensor:
            name, parameter = owners.get(saved.untyped_storage()._cdata, ("", saved))
            if (saved.shape, saved.stride()) != (parameter.shape, parameter.stride()):
                names.add(".".join(name.split(".")[-2:]))
            return saved

        length = 128 + (variant.images.sequence_tokens if variant.images is not None else 0)
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved),
            _values_known(built, variant),
        ):
            built.model(**make_inputs(built, 2, length, variant))
    return tuple(sorted(names))


def _step(
    model: nn.Module, hooks: Hooks, inputs: dict[str, torch.Tensor], variant: Variant, seq_len: int
) -> list[TraceEvent]:
    tracker = hooks.tracker = StorageTracker()
    if variant.images is not None:
        tracker.skipped = is_known_index(seq_len)
    tracker.ignore([*model.parameters(), *model.buffers()])
    with tracker, offloading(model, tracker, variant.offloaded):
        tracker.mark("phase", "forward")
        tracker.count(inputs.values())
        # autocast_if_enabled around the module's forward, engine.py:3006
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=variant.autocast):
            outputs = model(**inputs)
        loss = outputs.loss if "loss" in outputs else outputs[0].mean()  # of a model without a head
        del outputs
        tracker.mark("phase", "backward")
        loss.backward()
        del loss
        tracker.mark("phase", "end")
    return tracker.events


def replace_model(built: BuiltModel, model: nn.Module) -> BuiltModel:
    """The same build around a wrapped model."""
    return replace(built, model=model)
