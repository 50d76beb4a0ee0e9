"""One forward and backward of a built model under fake tensors, as a list of events."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from zerokit.domain.images import SequenceImages
from zerokit.domain.profile import Variant
from zerokit.trace.building.build import BuiltModel, transformers_on_gpu
from zerokit.trace.building.planned_parts import like, local
from zerokit.trace.recording.kernels import cuda_kernels, cuda_lists
from zerokit.trace.recording.known_values import KnownValues, value_of
from zerokit.trace.recording.offloading import offloading
from zerokit.trace.recording.selective import selective_checkpointing
from zerokit.trace.recording.shapes import Remembering
from zerokit.trace.recording.storage import StorageTracker, TraceEvent

_IMAGE_TOKENS = ("image_token_id", "image_token_index")
_CHANNELS = 3
_FEW = 64  # elements that weigh nothing
_TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")


def image_inputs(
    model: nn.Module, config: Any, images: SequenceImages, micro_batch: int, seq_len: int
) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``labels`` of shape (micro_batch, seq_len) with the images' tokens in front, and the
    images: in the dtype that DeepSpeed's Trainer casts them to."""
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    token = _image_token(config)
    text = next(number for number in range(1, 100) if number != token)
    one = ([token] * images.tokens + [text]) * images.count
    ids = torch.tensor([one + [text] * (seq_len - len(one))] * micro_batch)
    inputs = {"input_ids": ids, "labels": ids.clone()}
    inner: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model
    parameters = inspect.signature(inner.forward).parameters
    is_image = (ids == _image_token(config)).to(torch.long)
    inputs |= {name: is_image.clone() for name in _TOKEN_TYPES if name in parameters}
    return inputs | _pixels(config, images, micro_batch, dtype)


def is_known_index(seq_len: int) -> Any:
    """Whether a tensor is one of those that only say where things are, which a trace leaves out: a few bytes
    a token or image. A mask of every pair of tokens stays in."""

    def known(tensor: torch.Tensor) -> bool:
        # one number per image or token stays out at every batch size, however many there are
        is_table = sum(size > 1 for size in tensor.shape) > 1
        is_large = tensor.is_floating_point() and is_table and tensor.numel() > _FEW
        if value_of(tensor) is None or is_large:
            return False
        return tuple(tensor.shape[-2:]) != (seq_len, seq_len)

    return known


def _image_token(config: Any) -> int:
    return next(
        int(getattr(config, name)) for name in _IMAGE_TOKENS if getattr(config, name, None) is not None
    )


def _pixels(
    config: Any, images: SequenceImages, micro_batch: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    rows, columns = images.height // images.patch, images.width // images.patch
    if images.layout == "patches":
        vision = config.vision_config
        depth = getattr(vision, "temporal_patch_size", 2)
        values = _CHANNELS * depth * images.patch**2
        grid = torch.tensor([[1, rows, columns]] * (micro_batch * images.count))
        pixels = torch.empty(micro_batch * images.patches, values, dtype=dtype)
        return {"pixel_values": pixels, "image_grid_thw": grid}
    pixel_shape = (_CHANNELS, images.height, images.width)
    if images.layout == "images":
        return {
            "pixel_values": torch.empty(micro_batch * images.count * images.tiles, *pixel_shape, dtype=dtype)
        }
    shape = (micro_batch, images.count * images.tiles, *pixel_shape)
    mask = torch.ones(*shape[:2], *pixel_shape[1:], dtype=torch.long)
    # images of zeros would be taken for padding (idefics3/modeling_idefics3.py get_image_features)
    return {"pixel_values": torch.ones(shape, dtype=dtype), "pixel_attention_mask": mask}


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any = None) -> Any:
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(input, weight, bias)
        if input.dim() == 2 and bias is not None:
            return torch.addmm(bias, input, weight.t())
        output = input.matmul(weight.t())
        if bias is not None:
            output += bias
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        enabled, dtype = ctx.autocast
        with torch.autocast("cpu", enabled=enabled, dtype=dtype):
            input, weight, bias = ctx.saved_tensors
            grad_input = grad.matmul(weight) if ctx.needs_input_grad[0] else None
            grad_weight = grad_bias = None
            if ctx.needs_input_grad[1]:
                rows = grad.reshape(-1, grad.shape[-1])
                grad_weight = rows.t().matmul(input.reshape(-1, input.shape[-1]))
            if bias is not None and ctx.needs_input_grad[2]:
                grad_bias = grad.sum(list(range(grad.dim() - 1)))
            return grad_input, grad_weight, grad_bias


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    return _Linear.apply(input, weight) if bias is None else _Linear.apply(input, weight, bias)


@contextmanager
def zero3_linear(active: bool = True) -> Iterator[None]:
    """While active, linear layers keep what they keep under ZeRO-3, where ``zero.Init`` replaces
    ``torch.nn.functional.linear``.

    ``LinearFunctionForZeroStage3`` (``deepspeed/runtime/zero/linear.py``, 0.19.8;
    ``memory_efficient_linear``, on by default) saves its input whether or not the weight is trained, where
    PyTorch's own keeps the input of a frozen layer only if somebody else needs it. So under LoRA stage 3
    keeps more activations than stage 2. Under autocast it saves them as they come, and casts of its weights,
    which are views, are not kept.
    """
    original = torch.nn.functional.linear
    if active:
        torch.nn.functional.linear = _linear
    try:
        yield
    finally:
        torch.nn.functional.linear = original


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
                    empty = torch.empty_like(local(parameter), device="cpu", requires_grad=False)
                    empty = like(parameter, empty)
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
    if not variant.by_plan:  # a head stays apart from the embedding, as FSDP's groups have it
        model.tie_weights()
    model.train()
    for module in model.modules():
        if isinstance(getattr(module, "layerdrop", None), float):
            module.layerdrop = _EveryLayer()
    if variant.input_grads or (variant.lora_rank and variant.checkpointing in ("full", "reentrant")):
        model.enable_input_require_grads()
    if variant.checkpointing == "selective":
        selective_checkpointing(model, preserve_rng_state=False, determinism_check="none")
    elif variant.checkpointing != "none":
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
    tracker.adds_in_place = variant.autocast
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
