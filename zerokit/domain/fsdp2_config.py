"""FSDP2's settings out of what Accelerate and a Trainer read.

Accelerate 1.12 to 1.15: commands/launch.py, utils/launch.py:304, utils/dataclasses.py
(FullyShardedDataParallelPlugin) and parallelism_config.py; Transformers 5.23: training_args.py:2775.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from zerokit.domain.fsdp2_settings import PARALLELISM_PREFIX, Fsdp2Settings
from zerokit.domain.settings import TRAINERS_MICRO_BATCH
from zerokit.errors import InputError
from zerokit.values import frozen_dataclass, replace

_PREFIX = "fsdp_"
PARALLEL = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
"""Of what ``parallelism_config`` has sizes."""
TRUE_WORDS = ("y", "yes", "t", "true", "on", "1")
_LAYERS = ("Layer", "Block", "LayerWithMoE")
"""Endings of the names of classes that are a decoder's layers."""


@frozen_dataclass
class Fsdp2Config:
    """What a file says.

    Attributes:
        settings: batch sizes and optimizer apart; fp32 where no precision is named.
        names_precision: mixed precision is on; otherwise the weights are as the script loads them.
        checkpointing: FSDP checkpoints every layer that it wraps.
        shards: data-parallel ranks that hold one copy; None: as many as there are beside the replicas.
        shared: ranks that share a sequence (context parallel).
        processes, nodes: of the whole run; None: not said.
        batch: ``micro_batch`` and ``gradient_accumulation``, where the file says them.
        remarks: what it says that the figures do not follow, and what may be other for it.
    """

    settings: Fsdp2Settings
    names_precision: bool
    checkpointing: bool = False
    shards: int | None = None
    shared: int = 1
    processes: int | None = None
    nodes: int | None = None
    batch: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@frozen_dataclass
class _Reader:
    """Where the two readers of such keys differ: defaults, the name of the offload, whether the model is told
    to keep no keys and values (transformers 5.23, trainer.py:646)."""

    version: int
    auto_wrap_policy: str
    offload: str
    loading: bool
    turns_cache_off: bool


_ACCELERATE = _Reader(
    version=1, auto_wrap_policy="NO_WRAP", offload="offload_params", loading=True, turns_cache_off=False
)
_TRAINER = _Reader(
    version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP", offload="cpu_offload", loading=False,
    turns_cache_off=True,
)  # fmt: skip


def is_true(value: object) -> bool:
    """Whether Accelerate takes a value for true (utils/environment.py, ``str_to_bool``)."""
    return str(value).lower() in TRUE_WORDS


def fsdp_version(block: object, default: int = 1) -> int:
    """Of an ``fsdp_config``: 1 unless it says 2 (commands/launch.py, ``--fsdp_version``); a Trainer's: 2
    unless it says 1."""
    said = block.get("fsdp_version", block.get("version")) if isinstance(block, Mapping) else None
    return default if said is None else 2 if str(said) == "2" else 1


def from_accelerate(config: Mapping[str, Any]) -> Fsdp2Config:
    """Read an accelerate YAML of ``distributed_type: FSDP`` (already parsed, found without errors). Raises
    InputError: a part of it is not modelled."""
    parallelism = _mapping(config, "parallelism_config")
    sizes = {name: count(parallelism, f"{PARALLELISM_PREFIX}{name}_size") or 1 for name in PARALLEL}
    if sizes["tp"] > 1:
        raise InputError(
            f"parallelism_config_tp_size {sizes['tp']} divides no model under FSDP2 (`zerokit check`); what "
            f"Transformers divides by itself is estimated with ⟨engine⟩ fsdp2 and ⟨tp⟩ {sizes['tp']}"
        )
    if sizes["sp"] > 1:
        raise InputError(f"parallelism_config_sp_size {sizes['sp']} is not modelled under FSDP2")
    if str(_mapping(config, "dynamo_config").get("dynamo_backend", "no")).lower() != "no":
        raise InputError("dynamo_config: torch.compile is not modelled; remove it to estimate without")
    precision = str(config.get("mixed_precision") or "no").lower()
    # YAML reads no without quotes as false
    precision = "no" if precision == "false" else precision
    found = _from_block(_mapping(config, "fsdp_config"), _ACCELERATE, precision)
    rotation = str(parallelism.get(f"{PARALLELISM_PREFIX}cp_comm_strategy") or "allgather")
    return replace(
        found,
        settings=replace(found.settings, replicas=sizes["dp_replicate"], rotation=rotation),
        shared=sizes["cp"],
        shards=sizes["dp_shard"] if sizes["dp_shard"] > 1 else None,
        processes=count(config, "num_processes"),
        nodes=count(config, "num_machines"),
    )


def from_trainer(block: Mapping[str, Any], precision: str = "no") -> Fsdp2Config:
    """Read a Trainer's ``fsdp_config``; ``precision``: bf16 or fp16 where the Trainer has ``--bf16``. Raises
    InputError: a part of it is not modelled."""
    return _from_block(block, _TRAINER, precision)


def from_arguments(arguments: Mapping[str, Any]) -> Fsdp2Config:
    """Read a Trainer's arguments with ``fsdp``, its ``fsdp_config`` in them (training_args.py:2886). Raises
    InputError: a part of it is not modelled."""
    block, fsdp = dict(_mapping(arguments, "fsdp_config")), arguments.get("fsdp")
    words = fsdp.split() if isinstance(fsdp, str) else fsdp if isinstance(fsdp, list) else []
    for word in (str(one).lower() for one in words):
        if word not in _WORDS:
            raise InputError(f"fsdp {word} is FSDP version 1's and not modelled; use full_shard")
        block = {**_WORDS[word], **block}
    precision = next((name for name in ("bf16", "fp16") if is_true(arguments.get(name, False))), "no")
    found = from_trainer(block, precision)
    names = ("activation_checkpointing", "gradient_checkpointing")
    by_trainer = any(is_true(arguments.get(name, False)) for name in names)
    batch = {
        "micro_batch": count(arguments, "per_device_train_batch_size") or TRAINERS_MICRO_BATCH,
        "gradient_accumulation": count(arguments, "gradient_accumulation_steps") or 1,
    }
    return replace(found, checkpointing=found.checkpointing or by_trainer, batch=batch)


_WORDS: Mapping[str, Mapping[str, bool]] = {
    "full_shard": {"reshard_after_forward": True},
    "shard_grad_op": {"reshard_after_forward": False},
    "offload": {"cpu_offload": True},
    "auto_wrap": {},
}


def _from_block(block: Mapping[str, Any], reader: _Reader, precision: str) -> Fsdp2Config:
    said = {str(key).removeprefix(_PREFIX): value for key, value in block.items()}
    if fsdp_version(said, reader.version) == 1:
        raise InputError(
            "FSDP version 1 is not modelled; `zerokit convert` makes it version 2, or rehearse the script"
        )
    if precision not in ("no", "fp32", "bf16", "fp16"):
        raise InputError(f"mixed_precision {precision} is not modelled under FSDP2")
    policy = str(said.get("auto_wrap_policy") or reader.auto_wrap_policy).upper()
    if policy != "TRANSFORMER_BASED_WRAP":
        raise InputError(
            f"fsdp_auto_wrap_policy {policy} is not modelled; set fsdp_auto_wrap_policy: "
            "TRANSFORMER_BASED_WRAP"
        )
    for name in ("activation_checkpointing_offload", "ignored_modules"):
        if said.get(name) and (name == "ignored_modules" or is_true(said[name])):
            raise InputError(f"fsdp_{name} is not modelled")
    named = said.get("transformer_layer_cls_to_wrap") or []
    for name in named if isinstance(named, list) else str(named).split(","):
        if not str(name).endswith(_LAYERS):
            raise InputError(
                f"fsdp_transformer_layer_cls_to_wrap {name} is not modelled: only decoder layers are; remove "
                "it, and the model's own layers are wrapped"
            )
    is_mixed = precision in ("bf16", "fp16")
    return Fsdp2Config(
        settings=Fsdp2Settings(
            precision=precision if is_mixed else "fp32",
            reshard_after_forward=is_true(said.get("reshard_after_forward", True)),
            offload=is_true(said.get(reader.offload, False)),
            broadcasts=is_true(said.get("cpu_ram_efficient_loading", reader.loading)),
        ),
        names_precision=is_mixed,
        checkpointing=is_true(said.get("activation_checkpointing", False)),
        remarks=tuple(_remarks(said, reader)),
    )


def _remarks(said: Mapping[str, Any], reader: _Reader) -> Iterator[str]:
    if is_true(said.get("cpu_ram_efficient_loading", reader.loading)):
        yield (
            "fsdp_cpu_ram_efficient_loading: host memory is counted as if every rank loaded the weights: "
            "from_pretrained of Transformers 5 (to 5.23) does so whatever the key says, and Accelerate makes "
            "trained ones fp32 on each rank (huggingface/transformers#43749)"
        )
    if is_true(said.get("activation_checkpointing", False)) and not reader.turns_cache_off:
        yield (
            "fsdp_activation_checkpointing: counted with model.config.use_cache = False (a Trainer's); "
            "without it Transformers keeps the keys and values of all layers until backward has ended"
        )


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise InputError(f"{key} is {value!r:.60}: it must be a mapping")
    return value


def count(config: Mapping[str, Any], key: str) -> int | None:
    """Read a number above zero; None: the key has none."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
