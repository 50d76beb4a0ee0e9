"""What the DeepSpeed engine of a rank really runs with, read at its training forwards.

The plan says one thing; the script's own arguments may say another: a Trainer decides its batch, a
data loader its size, and checkpointing is turned on by the script or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zerokit.domain.job import PACKED_LORA, Lora
from zerokit.instrument.live_models import elements, live_modules, parameters_beside

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
        "gradient_checkpointing": fact(lambda: checkpointing(engine.module)),
        "parameters": sum(map(elements, parameters)),
        "trainable_parameters": sum(elements(one) for one in parameters if one.requires_grad),
        "other_parameters": fact(lambda: parameters_beside(engine.module, live_modules())),
        "adapters": fact(lambda: lora.to_dict() if (lora := adapters(engine.module)) else None),
        "adapters_unlike_lora": fact(lambda: unlike_lora(engine.module)),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        "skippable": fact(lambda: skippable_modules(engine.module)) or {},
    }


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
