"""What the DeepSpeed engine of a rank, or a model that FSDP2 has divided, really runs with, read at its
training forwards; and the models beside the one that trains.

The plan says one thing; the script's own arguments may say another: a Trainer decides its batch, a
data loader its size, and checkpointing is turned on by the script or not at all. ``fully_shard`` makes a
module an ``FSDPModule`` and keeps beside it how its parameters are gathered (torch 2.13,
distributed/fsdp/_fully_shard/_fsdp_param_group.py).
"""

from __future__ import annotations

import gc
import math
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from zerokit.domain.job import PACKED_LORA, Lora

_MAPPED_FILE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +/")
_MAPPING = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ")


def live_modules() -> list[Any]:
    """Every ``torch.nn.Module`` that is alive; 0.1 to 0.3 s."""
    module = sys.modules["torch"].nn.Module
    return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), module)]


def elements(parameter: Any) -> int:
    """Elements of a whole parameter, though this rank may hold a shard of it (ZeRO-3), or pack two into a
    byte (bitsandbytes 0.50, ``Params4bit``)."""
    unpacked = getattr(getattr(parameter, "quant_state", None), "shape", None)
    if unpacked is not None:
        return math.prod(unpacked)
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def parameters_beside(model: Any, modules: Iterable[Any]) -> int:
    """Elements of the weights that modules hold beside a model: of a teacher or a reference."""
    own_ids = {id(parameter) for parameter in model.parameters()}
    other_parameters = {
        id(parameter): parameter
        for module in modules
        for parameter in _attribute_values(module, "_parameters")
        if parameter is not None and parameter.device.type != "meta" and id(parameter) not in own_ids
    }
    return sum(map(elements, other_parameters.values()))


def resident_tensor_bytes(modules: Iterable[Any]) -> int:
    """Bytes in host memory of the modules' weights, their shards (ZeRO-3) and buffers, each once. Of weights
    that a file is mapped for (safetensors) only what was read yet is resident."""
    sizes: dict[int, int] = {}
    for module in modules:
        for tensor in (*_attribute_values(module, "_parameters"), *_attribute_values(module, "_buffers")):
            for part in (tensor, getattr(tensor, "ds_tensor", None)):
                if part is not None and part.device.type == "cpu":
                    storage = part.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values()) - _unread_bytes(sizes)


def _attribute_values(module: Any, name: str) -> Iterable[Any]:
    """A module's own tensors; none where its class has yet to make room for them."""
    return (getattr(module, name, None) or {}).values()


def _unread_bytes(sizes: dict[int, int]) -> int:
    """Bytes of storages, by address, in mapped files that are not resident."""
    addresses = sorted(sizes)
    unread = mapped = 0
    try:
        lines = Path("/proc/self/smaps").read_bytes().splitlines()
    except OSError:
        return 0
    for line in lines:
        if _MAPPING.match(line):
            header = _MAPPED_FILE.match(line)
            start, end = (int(header[1], 16), int(header[2], 16)) if header else (0, 0)
            inside = addresses[bisect_left(addresses, start) : bisect_left(addresses, end)]
            mapped = sum(sizes[name] for name in inside)
        elif mapped and line.startswith(b"Rss:"):
            unread += max(0, mapped - int(line.split()[1]) * 1024)
    return unread


_TOWERS = ("visual", "vision_tower", "vision_model", "vision_encoder", "audio_tower", "audio_model",
           "audio_encoder", "image_encoder")  # fmt: skip
_TOWER_CONFIGS = ("vision_config", "audio_config")
_BY_TEXT = ("ForConditionalGeneration", "ForImageTextToText", "ForCausalLM")
"""Models that take text alone too; those that compare images with texts (CLIP) always get both."""
_MOST = 4


def skippable_modules(model: Any) -> dict[str, list[str]]:
    """Names of ``experts`` and ``towers`` that a batch may pass by; of experts the list that holds them.

    Under ZeRO-3 a rank that does hangs those that gather their weights.

    Experts whose weights are one tensor (Transformers 5) are gathered together, and those in a leaf module
    (``set_z3_leaf_modules``, ``_z3_leaf``; deepspeed/utils/z3_leaf_module.py:23, 0.19.8) as well.
    """
    modules: dict[str, list[str]] = {"experts": _experts(model), "towers": _towers(model)}
    return {kind: names[:_MOST] for kind, names in modules.items() if names}


def _experts(model: Any) -> list[str]:
    names, leaves = [], []
    for name, module in model.named_modules():
        if getattr(module, "_z3_leaf", False):
            leaves.append(name + "." if name else "")
        children = list(module.children())
        alike = len(children) > 1 and len({type(child) for child in children}) == 1
        kinds = {base.__name__ for base in type(module).__mro__}
        holds = name.rpartition(".")[2] == "experts" and kinds & {"ModuleList", "ModuleDict"}
        if holds and alike and not f"{name}.".startswith(tuple(leaves)):
            names.append(name)
    return names


def _towers(model: Any) -> list[str]:
    config = getattr(model, "config", None)
    if not any(getattr(config, key, None) is not None for key in _TOWER_CONFIGS):
        return []
    if not any(word in base.__name__ for base in type(model).__mro__ for word in _BY_TEXT):
        return []
    names = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in _TOWERS]
    return [name for name in names if not any(name.startswith(parent + ".") for parent in names)]


_LEADING = ("input_ids", "labels", "inputs_embeds", "pixel_values", "input_features")


class EngineFacts:
    """What the engine that trains runs with, and the largest batch that it was fed so far.

    ``batch_rows`` and ``batch_columns``: of the tensor fed first, so sequences and tokens of each;
    ``loader_rows``: what a Trainer's arguments say when it begins to train, None without one.
    """

    def __init__(self) -> None:
        self._facts: dict[str, Any] | None = None
        self._told: dict[str, Any] | None = None
        self.loader_rows: int | None = None

    def trainer_began(self, rows: int) -> None:
        """A Trainer trains, whose loader gives ``rows`` a batch: pairs are one row there."""
        self.loader_rows = rows
        if self._facts is not None:
            self._facts = {**self._facts, "loader_rows": rows}

    def training_forward(
        self,
        engine: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        engines: int,
        read: Callable[[Any], dict[str, Any]] | None = None,
    ) -> None:
        """Look at one training forward, of an engine that ``read`` can tell of (None: :func:`record`); a few
        microseconds after the first."""
        rows, columns = batch(args, kwargs)
        fed, facts = {"batch_rows": rows, "batch_columns": columns}, self._facts
        if facts is None:
            self._facts = {
                **(read or record)(engine),
                **fed,
                "engines": engines,
                "loader_rows": self.loader_rows,
            }
            return
        before = (facts["batch_rows"] or 0) * (facts["batch_columns"] or 1)
        is_larger = (rows or 0) * (columns or 1) > before
        if is_larger or engines > facts["engines"]:
            larger = fed if is_larger else {}
            self._facts = {**facts, **larger, "engines": max(engines, facts["engines"])}

    def stepped(self, optimizer: Any) -> None:
        """A model without an engine was stepped: by which optimizer, and whether in a fused kernel."""
        if self._facts is not None and self._facts["optimizer"] is None:
            fused = bool(optimizer.defaults.get("fused"))
            self._facts = {**self._facts, "optimizer": type(optimizer).__name__, "fused": fused}

    @property
    def facts(self) -> dict[str, Any] | None:
        """What is known so far; None: no forward trained."""
        return self._facts

    def news(self) -> dict[str, Any] | None:
        """The ``engine`` record for the rank's file, where it is not the one that was asked for last."""
        if self._facts is self._told:
            return None
        self._told = self._facts
        return self._facts


def settings(engine: Any) -> dict[str, Any]:
    """What a script's code and a configuration can both set, by the names of
    :data:`zerokit.domain.settings.SETTINGS`; what cannot be read is None."""
    return {
        "zero_stage": fact(lambda: engine.zero_optimization_stage()),
        "gradient_accumulation": fact(lambda: engine.gradient_accumulation_steps()),
        "offload_optimizer": fact(lambda: _device(engine.zero_offload_optimizer())),
        "offload_param": fact(lambda: _device(engine.zero_offload_param())),
        "precision": fact(lambda: _precision(engine)),
    }


def record(engine: Any) -> dict[str, Any]:
    """What stays the same for an engine; a fact that cannot be read is None."""
    parameters = list(engine.module.parameters())
    return {
        "type": "engine",
        **settings(engine),
        "micro_batch": fact(lambda: engine.train_micro_batch_size_per_gpu()),
        "tensor_parallel": fact(lambda: max(1, int(engine.autotp_size() or 1))) or 1,
        "optimizer": fact(lambda: type(engine.basic_optimizer).__name__ if engine.basic_optimizer else None),
        "optimizer_groups": fact(lambda: optimizer_groups(engine)),
        "gradient_checkpointing": fact(lambda: checkpointing(engine.module)),
        "parameters": sum(map(elements, parameters)),
        "trainable_parameters": sum(elements(one) for one in parameters if one.requires_grad),
        "other_parameters": fact(lambda: parameters_beside(engine.module, live_modules())),
        "adapters": fact(lambda: lora.to_dict() if (lora := adapters(engine.module)) else None),
        "adapters_unlike_lora": fact(lambda: unlike_lora(engine.module)),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        "skippable": fact(lambda: skippable_modules(engine.module)) or {},
    }


def optimizer_groups(engine: Any) -> list[str] | None:
    """Patterns of the names in each of the optimizer's groups but the first, in which layers have any number.
    None: a group has another order than the model, or some of a kind that others have."""
    made = engine.optimizer
    lists = [getattr(made, name, None) for name in ("bit16_groups", "bf16_groups", "fp16_groups")]
    groups = next(filter(None, lists), None) or [group["params"] for group in made.param_groups]
    group_of = getattr(made, "sub_group_to_group_id", None) or range(len(groups))  # stage3.py:953, 0.19.8
    numbers = {id(one): group_of[at] for at, group in enumerate(groups) for one in group}
    order = [id(one) for group in groups for one in group]
    names = {id(one): name for name, one in engine.module.named_parameters() if id(one) in numbers}
    kinds: dict[str, int] = {}
    for one, name in names.items():
        if kinds.setdefault(re.sub(r"\b\d+\b", r"\\d+", re.escape(name)), numbers[one]) != numbers[one]:
            return None
    if order != sorted(names, key=numbers.__getitem__):
        return None
    of_group: dict[int, list[str]] = {number: [] for number in sorted(set(numbers.values()))}
    for kind, number in kinds.items():
        of_group[number].append(kind)
    return ["|".join(some) for some in of_group.values()][1:]


def adapters(module: Any) -> Lora | None:
    """LoRA's rank and modules, where one set of its matrices is all that is trained; None: not so."""
    configs = getattr(module, "peft_config", None)
    if not isinstance(configs, dict) or not configs or unlike_lora(module) is not None:
        return None
    (config,) = configs.values()
    return Lora(rank=config.r, targets=adapter_targets(module))


_JOINED = {"gate_up_proj": ("gate_proj", "up_proj")}


def adapter_targets(module: Any) -> tuple[str, ...]:
    """The last parts of the names of the modules that have LoRA's matrices, of experts' parameters the linear
    layers that are joined in them; ``all-linear`` alone where no linear layer but the output head is left
    out."""
    wrapped = {name: part for name, part in module.named_modules() if hasattr(part, "lora_A")}
    inside = tuple(f"{name}." for name in wrapped)
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    unfrozen = [
        name
        for name, part in module.named_modules()
        if type(part).__name__.startswith(("Linear", "Conv1D"))  # Linear4bit, Linear8bitLt
        and part is not head
        and name not in wrapped
        and not name.startswith(inside)
    ]
    if not unfrozen:
        return ("all-linear",)
    own = {getattr(part, "parameter_name", None) or name.rpartition(".")[2] for name, part in wrapped.items()}
    return tuple(sorted({target for name in own for target in _JOINED.get(name, (name,))}))


def unlike_lora(module: Any) -> str | None:
    """How peft's adapters are otherwise than LoRA of one rank on 16- or 32-bit weights, in words; None: they
    are not, or there are none."""
    configs = getattr(module, "peft_config", None)
    if not isinstance(configs, dict) or not configs:
        return None
    if len(configs) > 1:
        return f"{len(configs)} sets of adapters"
    (config,) = configs.values()
    if not isinstance(getattr(config, "r", None), int) or not hasattr(config, "use_dora"):
        kind = config.peft_type
        return f"adapters of another kind ({getattr(kind, 'value', kind)})"
    if config.use_dora:
        return "DoRA"
    # of experts in one parameter peft doubles the rank: two linear layers were joined in it
    # (peft/utils/transformers_weight_conversion.py:474, 0.21.2)
    layers = (part for part in module.modules() if hasattr(part, "lora_A"))
    if len({rank for part in layers if not hasattr(part, "parameter_name") for rank in part.r.values()}) > 1:
        return "LoRA of several ranks"
    named = list(module.named_parameters())
    if not all("lora_" in name for name, parameter in named if parameter.requires_grad):
        return "LoRA beside weights that are trained whole"
    if any(hasattr(parameter, "quant_state") for _, parameter in named):
        return PACKED_LORA
    in_8_bits = any(type(parameter).__name__ == "Int8Params" for _, parameter in named)
    return "LoRA on weights in 8 bits" if in_8_bits else None


def fact(read: Callable[[], Any]) -> Any:
    """A fact that this version of DeepSpeed tells in another way is unknown."""
    try:
        return read()
    except Exception:
        return None


def _device(offload: Any) -> str:
    device = getattr(offload, "device", None)
    return "none" if offload is None or device is None else str(getattr(device, "value", device))


def _precision(engine: Any) -> str:
    if engine.bfloat16_enabled():
        return "bf16"
    if engine.fp16_enabled():
        return "fp16"
    if engine.torch_autocast_enabled():
        name = str(engine.torch_autocast_dtype()).removeprefix("torch.")
        return {"bfloat16": "bf16", "float16": "fp16"}[name]
    return "fp32"


def batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, int | None]:
    """Rows and columns of the tensor that a forward is given first."""
    named = [kwargs[name] for name in _LEADING if name in kwargs]
    for value in (*named, *_flat((*args, *kwargs.values()))):
        shape = getattr(value, "shape", None)
        if shape is not None and len(shape) >= 1:
            return int(shape[0]), int(shape[1]) if len(shape) == 2 else None
    return None, None


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from (value[name] for name in _LEADING if name in value)
            yield from value.values()
        elif isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def checkpointing(module: Any) -> bool | None:
    """Whether Hugging Face layers recompute; None for a model that is not theirs."""
    flags = [
        flag
        for part in module.modules()
        if isinstance(flag := getattr(part, "gradient_checkpointing", None), bool)
    ]
    return any(flags) if flags else None


_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class DividedModels:
    """Tells a rank's facts of the divided models that are called."""

    def __init__(self, observed: EngineFacts) -> None:
        self._observed = observed
        self._divided: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def training_forward(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at a training forward of an outermost module, which may be divided or not."""
        fully_sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
        if fully_sharded is None:
            return
        if model not in self._divided:
            self._divided[model] = any(isinstance(part, fully_sharded) for part in model.modules())
        if self._divided[model]:
            self._observed.training_forward(
                model, args, kwargs, sum(self._divided.values()), read=record_divided
            )


def record_divided(model: Any) -> dict[str, Any]:
    """Read what stays the same for a divided model, as
    :func:`record` has it of an engine; what cannot be read is
    None. ``dtype``: of the forward pass; ``shard_dtype``: of trained shards;
    ``frozen_dtype``: of the others; ``wrapping``: as
    :class:`zerokit.domain.fsdp2_settings.Fsdp2Settings` has it."""
    groups = fact(lambda: _groups(model)) or []
    layers = groups[1:] or groups  # the outermost keeps its weights, whatever it was told
    parameters = list(model.parameters())
    dtype = fact(lambda: _name(groups[0].mp_policy.param_dtype or parameters[0].dtype))
    offload = fact(lambda: "cpu" if "CPU" in type(groups[0].offload_policy).__name__ else "none")
    return {
        "type": "engine",
        "engine": "fsdp2",
        "zero_stage": None,
        "gradient_accumulation": None,
        "offload_optimizer": offload,
        "offload_param": offload,
        "precision": _PRECISIONS.get(str(dtype)),
        "micro_batch": None,
        "tensor_parallel": fact(lambda: int(model._tp_size)),
        "optimizer": None,
        "gradient_checkpointing": fact(lambda: _is_wrapped(model) or checkpointing(model)),
        "parameters": sum(map(elements, parameters)),
        "trainable_parameters": sum(elements(one) for one in parameters if one.requires_grad),
        "other_parameters": fact(lambda: parameters_beside(model, live_modules())),
        "adapters": fact(lambda: lora.to_dict() if (lora := adapters(model)) else None),
        "adapters_unlike_lora": fact(lambda: unlike_lora(model)),
        "dtype": dtype,
        "sharding": fact(lambda: int(groups[0].mesh_info.mesh.shape[-1])),
        "wrapping": fact(lambda: _wrapping(model)),
        "reduce_dtype": fact(lambda: _name(groups[0].mp_policy.reduce_dtype)),
        "shard_dtype": fact(lambda: _name(next(one.dtype for one in parameters if one.requires_grad))),
        "frozen_dtype": fact(lambda: _name(next(one.dtype for one in parameters if not one.requires_grad))),
        "reshard_after_forward": fact(
            lambda: any(one.post_forward_mesh_info is not None for one in layers) if layers else None
        ),
        "skippable": {},
    }


def _groups(model: Any) -> list[Any]:
    """Parameter groups, one of each call of ``fully_shard``, the outermost first."""
    fully_sharded = sys.modules["torch.distributed.fsdp"].FSDPModule
    states = (part._get_fsdp_state() for part in model.modules() if isinstance(part, fully_sharded))
    return [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]


def _name(dtype: Any) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _wrapping(model: Any) -> str:
    """Accelerate divides the input embedding by itself, or with what it is tied to."""
    embedding = model.get_input_embeddings()
    fully_sharded = sys.modules["torch.distributed.fsdp"].FSDPModule
    return "accelerate" if isinstance(embedding, fully_sharded) else "layers"


def _is_wrapped(model: Any) -> bool:
    """Whether layers were wrapped to be recomputed, as Accelerate does it (utils/fsdp_utils.py, 1.15)."""
    kinds = {
        base for part in model.modules() for base in type(part).__mro__
    }  # a divided one has another name
    return any(kind.__name__ == "CheckpointWrapper" for kind in kinds)
