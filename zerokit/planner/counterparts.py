"""What DeepSpeed's files and FSDP2's can set of the same thing, and what is lost from one to the other.

DeepSpeed 0.19.8; torch 2.13, ``fully_shard``; Accelerate 1.12 to 1.15, utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import (
    AUTO,
    CONVERTS_A_CHECKPOINT,
    DEFAULT_ZERO,
    DeepSpeedSettings,
    ZeroSettings,
)
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.settings import value_at
from zerokit.errors import InputError
from zerokit.values import frozen_dataclass, replace

_Z, _F, _A = "zero_optimization", "fsdp_config.fsdp", "deepspeed_config"
_P = "parallelism_config.parallelism_config_dp"
PLANNED_CHECKPOINTING = "plan.activation_checkpointing"
"""What a plan for DeepSpeed has of it, whose file has nothing."""
Text = str | Callable[[DeepSpeedSettings, Fsdp2Settings], str]


@frozen_dataclass
class Counterpart:
    """One thing that is set, by the keys of both; what has no key on the other side is lost, or the script's.

    Attributes:
        deepspeed: dotted keys of DeepSpeed's JSON, or blocks of them; of Accelerate's plugin below
            ``deepspeed_config``.
        fsdp2: dotted keys of Accelerate's YAML.
        forth: what is other under FSDP2, where DeepSpeed's key is set; empty: nothing.
        back: what is other under DeepSpeed, where FSDP2's key is set.
        by_script: how the script says it, where no key of the new file does.
    """

    deepspeed: tuple[str, ...] = ()
    fsdp2: tuple[str, ...] = ()
    forth: Text = ""
    back: Text = ""
    by_script: Text = ""


@frozen_dataclass
class Change:
    """What becomes of keys of a file.

    Attributes:
        kind: kept; changed: what it does is other; script: the script must say it; lost.
        keys: with their values, as the file has them.
        becomes: keys of the new file with their values.
        text: what is other.
    """

    kind: str
    keys: Mapping[str, Any]
    becomes: Mapping[str, Any]
    text: str = ""


def _stage(old: DeepSpeedSettings, new: Fsdp2Settings) -> str:
    also = {
        0: "FSDP2 divides weights, gradients and states: what keeps them whole is distributed_type MULTI_GPU",
        1: "FSDP2 divides weights and gradients, too; weights are whole from forward to the end of backward",
        2: "FSDP2 divides the weights, too; they are whole from forward to the end of backward",
    }
    return also.get(old.zero.stage, "")


def _offload(old: DeepSpeedSettings, new: Fsdp2Settings) -> str:
    devices = (old.optimizer_device, old.weights_device)
    if not new.offload:
        return ""
    said = "torch's optimizer steps on the CPU, not DeepSpeedCPUAdam"
    if "nvme" in devices:
        return f"host memory must hold it: FSDP2 has no NVMe; {said}"
    if "none" in devices:
        return f"weights, gradients and states are offloaded together; {said}"
    return said


def _precision(old: DeepSpeedSettings, new: Fsdp2Settings) -> str:
    if old.torch_autocast:
        return "weights are gathered in 16 bits, which torch_autocast keeps in fp32"
    return "torch's GradScaler scales the loss" if new.precision == "fp16" else ""


def _optimizer(old: DeepSpeedSettings, new: Fsdp2Settings) -> str:
    kind = old.optimizer or ""
    mode = "; DeepSpeed's Adam is AdamW unless adam_w_mode is false" if kind.lower() == "adam" else ""
    known = kind.lower() in ("adam", "adamw", "adagrad", "sgd", "muon")
    other = "" if known else f"; torch has no {kind}"
    return f"the script makes it (a Trainer by its arguments), in the place of a DummyOptim{mode}{other}"


def _replicas(old: DeepSpeedSettings, new: Fsdp2Settings) -> str:
    if old.zero.zero_hpz_partition_size > 1:
        return "gradients and states are divided over all ranks; a copy of the weights alone stays in a group"
    return "ZeRO-2 divides over all ranks"


_ROWS = (
    Counterpart(
        deepspeed=(f"{_Z}.stage", f"{_A}.zero_stage"), fsdp2=(f"{_F}_reshard_after_forward",), forth=_stage,
        back=lambda old, new: "" if new.reshard_after_forward
        else "ZeRO-2 keeps 16-bit weights whole between steps, too",
    ),
    Counterpart(
        deepspeed=(f"{_Z}.offload_optimizer.device", f"{_Z}.offload_param.device", f"{_Z}.cpu_offload",
                   f"{_Z}.cpu_offload_param", f"{_A}.offload_optimizer_device",
                   f"{_A}.offload_param_device"),
        fsdp2=(f"{_F}_offload_params",), forth=_offload,
        back=lambda old, new: "" if not new.offload else "DeepSpeedCPUAdam steps in torch's place" if
        old.zero.stage == 3 else "weights stay on the GPU; DeepSpeedCPUAdam steps in torch's place",
    ),
    Counterpart(
        deepspeed=("bf16.enabled", "bfloat16.enabled", "fp16.enabled", "torch_autocast"),
        fsdp2=("mixed_precision",), forth=_precision,
        back=lambda old, new: "DeepSpeed scales the loss with its own values" if new.precision == "fp16"
        else "",
        by_script="Accelerator(mixed_precision=…); a Trainer's bf16 or fp16",
    ),
    Counterpart(
        deepspeed=("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"),
        fsdp2=("mixed_precision",),
        forth=lambda old, new: "the script loads the weights in bf16; Adam's moments are bf16, too"
        if new.master_bytes == 2 else "the moments have the dtype of the weights: fp32",
    ),
    Counterpart(
        deepspeed=("fp16",), by_script="Accelerator(kwargs_handlers=[GradScalerKwargs(…)])",
    ),
    Counterpart(
        deepspeed=(f"{_Z}.stage3_gather_16bit_weights_on_model_save",
                   f"{_Z}.gather_16bit_weights_on_model_save", f"{_A}.zero3_save_16bit_model"),
        fsdp2=(f"{_F}_state_dict_type",),
        forth="checkpoints are whole, too; SHARDED_STATE_DICT divides them, and a Trainer's final weights",
        back=f"checkpoints are divided: `{CONVERTS_A_CHECKPOINT}` makes whole weights of one",
    ),
    Counterpart(
        deepspeed=(f"{_A}.zero3_init_flag",), fsdp2=(f"{_F}_cpu_ram_efficient_loading",),
        forth=lambda old, new: "rank 0 sends its weights; Transformers 5 alone loads the model on every rank"
        if new.broadcasts else "" if old.zero.stage == 3 else "has no effect below ZeRO-3",
        back=lambda old, new: "every rank loads the weights" if new.broadcasts and old.zero.stage < 3 else "",
    ),
    Counterpart(
        deepspeed=(f"{_Z}.zero_hpz_partition_size",),
        fsdp2=(f"{_P}_replicate_size", f"{_P}_shard_size"),
        forth=lambda old, new: "" if old.zero.zero_hpz_partition_size == 1 else "backward gathers over all "
        f"ranks; fully_shard(reshard_after_forward={old.zero.zero_hpz_partition_size}) is what it does, and "
        "Accelerate's YAML cannot say it",
        back=_replicas,
    ),
    Counterpart(
        deepspeed=(f"{_Z}.mics_shard_size",),
        fsdp2=(f"{_P}_replicate_size", f"{_P}_shard_size"),
        forth="accelerate.yaml alone says groups of ranks, a Trainer's fsdp_config does not",
    ),
    Counterpart(
        deepspeed=(f"{_Z}.zero_quantized_weights", f"{_Z}.zero_quantized_gradients",
                   f"{_Z}.zero_quantized_nontrainable_weights", f"{_Z}.zeropp_loco_param"),
        forth="weights and gradients cross the network unquantised",
    ),
    Counterpart(
        deepspeed=("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                   f"{_A}.gradient_accumulation_steps"),
        by_script="batch_size of its DataLoader, and Accelerator(gradient_accumulation_steps=…); a Trainer's "
        "arguments",
    ),
    Counterpart(
        deepspeed=("gradient_clipping", f"{_A}.gradient_clipping"),
        by_script="accelerator.clip_grad_norm_(model.parameters(), …) in its loop; a Trainer's max_grad_norm",
    ),
    Counterpart(deepspeed=("optimizer",), by_script=_optimizer),
    Counterpart(
        deepspeed=("scheduler",),
        by_script="the script makes it (a Trainer by its arguments), in the place of a DummyScheduler",
    ),
    Counterpart(
        deepspeed=("data_types", "communication_data_type", "prescale_gradients",
                   "gradient_predivide_factor", "fp32_allreduce"),
        forth=lambda old, new: f"gradients are reduced and added up in {new.precision}; another reduce_dtype "
        "is for a script with fully_shard of its own",
    ),
    Counterpart(
        deepspeed=(f"{_Z}.offload_optimizer", f"{_Z}.offload_param", f"{_Z}.cpu_offload_use_pin_memory",
                   "aio", "zero_force_ds_cpu_optimizer"),
        forth="FSDP2 offloads all of it, to pinned memory",
    ),
    Counterpart(
        deepspeed=(*(f"{_Z}.{name}" for name in (
            "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "allgather_partitions",
            "allgather_bucket_size", "overlap_comm", "round_robin_gradients", "sub_group_size",
            *(f"{stage}{name}" for stage in ("stage3_", "") for name in (
                "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold",
                "max_live_parameters", "max_reuse_distance", "module_granularity_threshold",
            )), "leaf_module",
        )), f"{_A}.deepspeed_moe_layer_cls_names"),
        forth="FSDP2 gathers and reduces layer by layer, the next one while one computes: it has no sizes",
    ),
    Counterpart(
        deepspeed=("activation_checkpointing",), forth="is of deepspeed.checkpointing, which a script calls",
    ),
    Counterpart(
        deepspeed=("steps_per_print", "wall_clock_breakdown", "tensorboard", "wandb", "comet", "csv_monitor",
                   "flops_profiler", "comms_logger", "dump_state", "memory_breakdown", "timers", "log_level"),
        forth="is what DeepSpeed measures and prints",
    ),
    Counterpart(
        deepspeed=("zero_allow_untested_optimizer",), forth="FSDP2 takes any of torch's optimizers",
    ),
    Counterpart(
        deepspeed=(f"{_A}.deepspeed_multinode_launcher", f"{_A}.deepspeed_hostfile",
                   f"{_A}.deepspeed_inclusion_filter", f"{_A}.deepspeed_exclusion_filter"),
        forth="accelerate launch is started on each node",
    ),
    Counterpart(
        fsdp2=(f"{_F}_auto_wrap_policy", f"{_F}_transformer_layer_cls_to_wrap", f"{_F}_min_num_params"),
        back="DeepSpeed gathers weights module by module, by its own sizes",
    ),
    Counterpart(
        deepspeed=(PLANNED_CHECKPOINTING,), fsdp2=(f"{_F}_activation_checkpointing",),
        forth="the script no longer checkpoints by itself",
        by_script="model.gradient_checkpointing_enable(); a Trainer's gradient_checkpointing",
    ),
    Counterpart(
        fsdp2=(f"{_F}_activation_checkpointing_offload",), back="kept activations stay on the GPU",
    ),
    Counterpart(fsdp2=(f"{_F}_ignored_modules",), back="DeepSpeed divides all weights"),
    Counterpart(
        fsdp2=(f"{_F}_backward_prefetch", f"{_F}_forward_prefetch"),
        back="DeepSpeed fetches ahead by its own sizes",
    ),
    Counterpart(
        fsdp2=("fsdp", *(f"{_F}_{name}" for name in (
            "version", "sync_module_states", "use_orig_params", "limit_all_gathers", "sharding_strategy",
        ))),
    ),
)  # fmt: skip
REMOVED = ("removed-mics-shard-size", "removed-mics-hierarchical-params-gather", "removed-zeropp-loco-param")
"""Errors of ``check`` about keys that DeepSpeed no longer has, which FSDP2 has or does without."""
_UNKNOWN = "no counterpart is known"
_UNREAD = ("fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_ignored_modules",
           "fsdp_activation_checkpointing_offload")  # fmt: skip
"""Keys without a counterpart whose values a prediction does not follow."""


def to_fsdp2(
    settings: DeepSpeedSettings, ranks: int, mics_shard: int = 0, *, divides_init: bool = True
) -> Fsdp2Settings:
    """The settings of FSDP2 that come nearest: below ZeRO-3 those that keep gathered weights.

    Args:
        mics_shard: ranks of a group that holds all, of ``mics_shard_size``; 0: all of them.
        divides_init: weights are divided as they are made at ZeRO-3: no rank holds the model.

    Raises:
        InputError: groups that do not divide the ranks.
    """
    if mics_shard and ranks % mics_shard:
        raise InputError(f"zero_optimization.mics_shard_size {mics_shard} does not divide {ranks} ranks")
    autocast = {None: settings.precision, "bfloat16": "bf16", "torch.bfloat16": "bf16"}
    return Fsdp2Settings(
        precision=autocast.get(settings.torch_autocast, "fp16"),
        micro_batch=settings.micro_batch,
        gradient_accumulation=settings.gradient_accumulation,
        gradient_clipping=settings.gradient_clipping,
        optimizer=settings.optimizer,
        client_optimizer=settings.client_optimizer,
        reshard_after_forward=settings.divides_weights,
        offload=settings.offloads,
        replicas=ranks // mics_shard if mics_shard else 1,
        master_bytes=2 if settings.bf16_master_weights_and_grads else 4,
        broadcasts=settings.divides_weights and divides_init,
    )


def to_deepspeed(settings: Fsdp2Settings, ranks: int) -> DeepSpeedSettings:
    """The settings of DeepSpeed that come nearest: ZeRO-3, or ZeRO-2 where gathered weights are kept."""
    whole = not settings.reshard_after_forward
    offload = "cpu" if settings.offload else "none"
    zero = ZeroSettings(
        stage=2 if whole else 3,
        gather_16bit_weights_on_model_save=not whole,
        zero_hpz_partition_size=1 if whole or settings.replicas == 1 else ranks // settings.replicas,
        offload_optimizer=replace(DEFAULT_ZERO.offload_optimizer, device=offload),
        offload_param=replace(DEFAULT_ZERO.offload_param, device="none" if whole else offload),
    )
    return DeepSpeedSettings(
        precision=settings.precision,
        micro_batch=settings.micro_batch,
        gradient_accumulation=settings.gradient_accumulation,
        gradient_clipping=settings.gradient_clipping,
        optimizer=settings.optimizer,
        client_optimizer=settings.client_optimizer,
        bf16_master_weights_and_grads=settings.precision == "bf16" and settings.master_bytes == 2,
        bf16_optimizer_states=settings.precision == "bf16" and settings.master_bytes == 2,
        zero=zero,
    )


def changes(
    said: Mapping[str, tuple[str, Any]],
    target: Mapping[str, Any],
    deepspeed: DeepSpeedSettings,
    fsdp2: Fsdp2Settings,
    *,
    forth: bool,
) -> tuple[Change, ...]:
    """What becomes of each key of a file, together where one row names them.

    Args:
        said: the key as the file has it → that of the rows, and its value.
        target: the new file's, where the rows' keys are looked up.
        forth: from DeepSpeed to FSDP2; else back.
    """
    rest, found = dict(said), list[Change]()
    for row in (*_ROWS, Counterpart(forth=_UNKNOWN, back=_UNKNOWN)):
        own, others = (row.deepspeed, row.fsdp2) if forth else (row.fsdp2, row.deepspeed)
        keys = {key: value for key, (name, value) in rest.items() if not own + others or _is_of(name, own)}
        if not keys:
            continue
        rest = {key: value for key, value in rest.items() if key not in keys}
        becomes = {name: value for name in others if (value := value_at(target, name)) is not None}
        text = row.by_script if row.by_script and not becomes else row.forth if forth else row.back
        text = text if isinstance(text, str) else text(deepspeed, fsdp2)
        kind = ("changed" if text else "kept") if becomes else "script" if row.by_script else "lost"
        # what is off is no loss, nor what is left open
        idle = {"lost": (False, None, "none", AUTO), "script": (False, None)}.get(kind, ())
        is_set = not idle or any(value not in idle for value in keys.values())
        if is_set and (becomes or text):
            found.append(Change(kind=kind, keys=keys, becomes=becomes, text=text))
    return tuple(sorted(found, key=lambda change: KINDS.index(change.kind)))


KINDS = ("kept", "changed", "script", "lost")


def _is_of(name: str, keys: tuple[str, ...]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)


# ---- FSDP version 1, as `accelerate to-fsdp2` rewrites it (Accelerate 1.15, commands/to_fsdp2.py)

_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""In the order of their numbers, from 1 (utils/constants.py, FSDP_SHARDING_STRATEGY)."""
_RESHARDS = {"FULL_SHARD": True, "HYBRID_SHARD": True}
_GONE: Mapping[str, str] = {
    "backward_prefetch": "FSDP2 always fetches ahead in backward",
    "forward_prefetch": "the order of gathers is FSDP2's own",
    "sync_module_states": "FSDP2 needs none",
    "use_orig_params": "FSDP2 always has the original parameters",
    "limit_all_gathers": "FSDP2 always limits them",
}
"""Key of version 1 -> what version 2 does without it."""


def of_version_2(
    block: Mapping[str, Any], prefix: str, ranks: int | None, nodes: int
) -> tuple[dict[str, Any], int, tuple[Change, ...]]:
    """A block of version 1 in the words of version 2, the groups of ranks that each hold all shards, and what
    changed.

    Args:
        prefix: of its keys: ``fsdp_``, or nothing in a Trainer's.
        ranks: of the run; None: not said.
    """
    new: dict[str, Any] = {f"{prefix}version": 2}
    replicas, found = 1, list[Change]()
    for key, value in block.items():
        name, shown = str(key).removeprefix("fsdp_"), {f"fsdp_config.{key}": value}
        if name == "version":
            continue
        if name in _GONE:
            found.append(Change(kind="lost", keys=shown, becomes={}, text=_GONE[name]))
        elif name in ("sharding_strategy", "reshard_after_forward"):
            word = str(value).upper().removeprefix("_")
            word = _STRATEGIES[int(word) - 1] if word in ("1", "2", "3", "4", "5") else word
            new[f"{prefix}reshard_after_forward"] = _RESHARDS.get(word, False)
            becomes: dict[str, Any] = {
                f"fsdp_config.{prefix}reshard_after_forward": _RESHARDS.get(word, False)
            }
            text = ""
            if word == "NO_SHARD":
                text = "FSDP2 divides weights, gradients and states; whole: distributed_type MULTI_GPU"
            elif word.startswith("HYBRID") and nodes > 1 and ranks is not None:
                replicas = nodes
                becomes |= {f"{_P}_replicate_size": nodes, f"{_P}_shard_size": ranks // nodes}
            found.append(Change(kind="changed" if text else "kept", keys=shown, becomes=becomes, text=text))
        elif name == "state_dict_type" and str(value).upper() in ("LOCAL_STATE_DICT", "2"):
            new[f"{prefix}{name}"] = "SHARDED_STATE_DICT"
            text = "FSDP2 has no checkpoints in its own layout"
            found.append(
                Change(kind="changed", keys=shown, becomes={f"fsdp_config.{key}": new[key]}, text=text)
            )
        else:
            new[str(key)] = value
    return new, replicas, tuple(sorted(found, key=lambda change: KINDS.index(change.kind)))


def is_read(key: str) -> bool:
    """Whether DeepSpeed's settings come of this key of an ``fsdp_config``."""
    return f"fsdp_{key.removeprefix('fsdp_')}" not in _UNREAD


def leaves(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of a file with their values; of a block that is off, that alone."""
    is_off = config.get("enabled") is False
    for name, value in config.items():
        if isinstance(value, Mapping) and not is_off:
            yield from leaves(value, f"{path}{name}.")
        elif not is_off or name == "enabled":
            yield f"{path}{name}", value
