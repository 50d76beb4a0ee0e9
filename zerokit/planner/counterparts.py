"""What DeepSpeed's files and FSDP2's can set of the same thing, and what is lost from one to the other.

DeepSpeed 0.19.8; torch 2.13, ``fully_shard``; Accelerate 1.12 to 1.15, utils/dataclasses.py.
"""

from __future__ import annotations

import re
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
from zerokit.domain.settings import PLUGIN_KEYS, value_at
from zerokit.domain.training_settings import TrainingSettings
from zerokit.emit.fsdp2 import groups
from zerokit.errors import InputError
from zerokit.linter.accelerate.keys import STRATEGIES
from zerokit.values import frozen_dataclass, replace

Text = str | Callable[[DeepSpeedSettings, Fsdp2Settings], str]


@frozen_dataclass
class Counterpart:
    """One thing that is set, by the keys of both; what has no key on the other side is lost, or the script's.

    Attributes:
        deepspeed: dotted keys of DeepSpeed's JSON, or blocks of them.
        fsdp2: dotted keys of Accelerate's YAML.
        forth: what is other under FSDP2, where DeepSpeed's key is set; empty: nothing.
        back: what is other under DeepSpeed, where FSDP2's key is set.
        by_script: how the script says it, where no key of the new file does.
    """

    deepspeed: tuple[str, ...]
    fsdp2: tuple[str, ...]
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


KINDS = ("kept", "changed", "script", "lost")
_SHORT = {
    "zero.": "zero_optimization.", "plugin.": "deepspeed_config.", "fsdp.": "fsdp_config.fsdp_",
    "ranks.": "parallelism_config.parallelism_config_dp_",
    "shared.": "parallelism_config.parallelism_config_cp_",
}  # fmt: skip


def _row(deepspeed: str, fsdp2: str = "", **texts: Text) -> Counterpart:
    """A row; of ``stage3_`` the keys are named without it, too."""
    for short, whole in _SHORT.items():
        deepspeed, fsdp2 = deepspeed.replace(short, whole), fsdp2.replace(short, whole)
    return Counterpart(deepspeed=tuple(deepspeed.split()), fsdp2=tuple(fsdp2.split()), **texts)


_STAGES = {
    0: "FSDP2 divides weights, gradients and states: what keeps them whole is distributed_type MULTI_GPU",
    1: "FSDP2 divides weights and gradients, too; weights are whole from forward to the end of backward",
    2: "FSDP2 divides the weights, too; they are whole from forward to the end of backward",
}


def _offload(old: DeepSpeedSettings, new: Fsdp2Settings) -> str:
    devices = (old.optimizer_device, old.weights_device)
    nvme = "host memory must hold it: FSDP2 has no NVMe; " * ("nvme" in devices)
    together = "weights, gradients and states are offloaded together; " * ("none" in devices)
    own = "torch's optimizer steps on the CPU, not DeepSpeedCPUAdam"
    return f"{nvme or together}{own}" if new.offload else ""


def _optimizer(old: DeepSpeedSettings, new: Fsdp2Settings) -> str:
    kind = (old.optimizer or "").lower()
    known = kind in ("adam", "adamw", "adagrad", "sgd", "muon")
    other = "" if known else f"; torch has no {old.optimizer or ''}"
    mode = "; DeepSpeed's Adam is AdamW unless adam_w_mode is false" * (kind == "adam")
    return f"{_MADE.format('DummyOptim')}{mode}{other}"


_MADE = "the script makes it (a Trainer by its arguments), in the place of a {}"
_ROWS = (
    _row(
        "zero.stage", "fsdp.reshard_after_forward fsdp.sharding_strategy",
        forth=lambda old, new: _STAGES.get(old.zero.stage, ""),
        back=lambda old, new: "" if new.reshard_after_forward
        else "ZeRO-2 keeps 16-bit weights whole between steps, too",
    ),
    _row(
        "zero.offload_optimizer.device zero.offload_param.device zero.cpu_offload zero.cpu_offload_param",
        "fsdp.offload_params fsdp.cpu_offload", forth=_offload,
        back=lambda old, new: "" if not new.offload else "weights stay on the GPU; " * (old.zero.stage < 3)
        + "DeepSpeedCPUAdam steps in torch's place",
    ),
    _row(
        "bf16.enabled bfloat16.enabled fp16.enabled torch_autocast mixed_precision", "mixed_precision",
        forth=lambda old, new: "weights are gathered in 16 bits, which torch_autocast keeps in fp32"
        if old.torch_autocast else "torch's GradScaler scales the loss" * (new.precision == "fp16"),
        back=lambda old, new: "DeepSpeed scales the loss with its own values" * (new.precision == "fp16"),
        by_script="Accelerator(mixed_precision=…); a Trainer's bf16 or fp16",
    ),
    _row(
        "bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states", "mixed_precision",
        forth=lambda old, new: "the script loads the weights in bf16; Adam's moments are bf16, too"
        if new.master_bytes == 2 else "the moments have the dtype of the weights: fp32",
    ),
    _row("fp16", by_script="Accelerator(kwargs_handlers=[GradScalerKwargs(…)])"),
    _row(
        "zero.stage3_gather_16bit_weights_on_model_save zero.gather_16bit_weights_on_model_save",
        "fsdp.state_dict_type",
        forth="checkpoints are whole, too; SHARDED_STATE_DICT divides them, and a Trainer's final weights",
        back=f"checkpoints are divided: `{CONVERTS_A_CHECKPOINT}` makes whole weights of one",
    ),
    _row(
        "plugin.zero3_init_flag", "fsdp.cpu_ram_efficient_loading",
        forth=lambda old, new: "rank 0 sends its weights; Transformers 5 alone loads the model on every rank"
        if new.broadcasts else "has no effect below ZeRO-3" * (old.zero.stage < 3),
        back=lambda old, new: "every rank loads the weights" * (new.broadcasts and old.zero.stage < 3),
    ),
    _row(
        "zero.zero_hpz_partition_size", "ranks.replicate_size ranks.shard_size",
        forth=lambda old, new: "" if old.zero.zero_hpz_partition_size == 1 else "backward gathers over all "
        f"ranks; fully_shard(reshard_after_forward={old.zero.zero_hpz_partition_size}) is what it does, and "
        "Accelerate's YAML cannot say it",
        back=lambda old, new: "DeepSpeed divides over all ranks" if old.zero.zero_hpz_partition_size == 1
        else "gradients and states are divided over all ranks; a copy of the weights alone stays in a group",
    ),
    _row(
        "zero.mics_shard_size", "ranks.replicate_size ranks.shard_size",
        forth="accelerate.yaml alone says groups of ranks, a Trainer's fsdp_config does not",
    ),
    _row(
        "zero.zero_quantized_weights zero.zero_quantized_gradients zero.zero_quantized_nontrainable_weights "
        "zero.zeropp_loco_param", forth="weights and gradients cross the network unquantised",
    ),
    _row(
        "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps",
        by_script="batch_size of its DataLoader, and Accelerator(gradient_accumulation_steps=…); a Trainer's "
        "arguments",
    ),
    _row(
        "gradient_clipping",
        by_script="accelerator.clip_grad_norm_(model.parameters(), …) in its loop; a Trainer's max_grad_norm",
    ),
    _row("optimizer", by_script=_optimizer),
    _row("scheduler", by_script=_MADE.format("DummyScheduler")),
    _row(
        "data_types communication_data_type prescale_gradients gradient_predivide_factor fp32_allreduce",
        forth=lambda old, new: f"gradients are reduced and added up in {new.precision}; another reduce_dtype "
        "is for a script with fully_shard of its own",
    ),
    _row(
        "zero.offload_optimizer zero.offload_param zero.cpu_offload_use_pin_memory aio "
        "zero_force_ds_cpu_optimizer", forth="FSDP2 offloads all of it, to pinned memory",
    ),
    _row(
        "zero.contiguous_gradients zero.reduce_scatter zero.reduce_bucket_size zero.allgather_partitions "
        "zero.allgather_bucket_size zero.overlap_comm zero.round_robin_gradients zero.sub_group_size "
        "zero.prefetch_bucket_size zero.param_persistence_threshold zero.model_persistence_threshold "
        "zero.max_live_parameters zero.max_reuse_distance zero.module_granularity_threshold zero.leaf_module "
        "plugin.deepspeed_moe_layer_cls_names",
        forth="FSDP2 gathers and reduces layer by layer, the next one while one computes: it has no sizes",
    ),
    _row("activation_checkpointing", forth="is of deepspeed.checkpointing, which a script calls"),
    _row(
        "steps_per_print wall_clock_breakdown tensorboard wandb comet csv_monitor flops_profiler "
        "comms_logger dump_state memory_breakdown timers log_level",
        forth="is what DeepSpeed measures and prints",
    ),
    _row("zero_allow_untested_optimizer", forth="FSDP2 takes any of torch's optimizers"),
    _row(
        "plugin.deepspeed_multinode_launcher plugin.deepspeed_hostfile plugin.deepspeed_inclusion_filter "
        "plugin.deepspeed_exclusion_filter", forth="accelerate launch is started on each node",
    ),
    _row(
        "", "fsdp.auto_wrap_policy fsdp.transformer_layer_cls_to_wrap fsdp.min_num_params",
        back="DeepSpeed gathers weights module by module, by its own sizes",
    ),
    _row(
        "plan.activation_checkpointing", "fsdp.activation_checkpointing",
        forth="the script no longer checkpoints by itself",
        by_script="model.gradient_checkpointing_enable(); a Trainer's gradient_checkpointing",
    ),
    _row("", "fsdp.activation_checkpointing_offload", back="kept activations stay on the GPU"),
    _row("", "fsdp.ignored_modules", back="DeepSpeed divides all weights"),
    _row("", "fsdp.backward_prefetch fsdp.forward_prefetch", back="DeepSpeed fetches ahead by its own sizes"),
    _row(
        "", "fsdp.version fsdp.sync_module_states fsdp.use_orig_params fsdp.limit_all_gathers",
    ),
    _row(
        "", "shared.size shared.comm_strategy shared.backend",
        back="every rank gets a batch of its own; DeepSpeed's Ulysses, which shares sequences, is planned "
        "with `--sp`",
    ),
    _row("", "", forth="no counterpart is known", back="no counterpart is known"),
)  # fmt: skip
"""The first that names a key is followed; the last one stands for all others."""
REMOVED = ("removed-mics-shard-size", "removed-mics-hierarchical-params-gather", "removed-zeropp-loco-param")
"""Errors of ``check`` about keys that DeepSpeed no longer has, which FSDP2 has or does without."""


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
        **_alike(settings) | {"precision": autocast.get(settings.torch_autocast, "fp16")},
        reshard_after_forward=settings.divides_weights,
        offload=settings.offloads,
        replicas=ranks // mics_shard if mics_shard else 1,
        master_bytes=2 if settings.bf16_master_weights_and_grads else 4,
        broadcasts=settings.divides_weights and divides_init,
    )


def to_deepspeed(settings: Fsdp2Settings, ranks: int) -> DeepSpeedSettings:
    """The settings of DeepSpeed that come nearest: ZeRO-3, or ZeRO-2 where gathered weights are kept."""
    whole, offload = not settings.reshard_after_forward, "cpu" if settings.offload else "none"
    halved = settings.precision == "bf16" and settings.master_bytes == 2
    zero = ZeroSettings(
        stage=2 if whole else 3,
        gather_16bit_weights_on_model_save=not whole,
        zero_hpz_partition_size=1 if whole or settings.replicas == 1 else ranks // settings.replicas,
        offload_optimizer=replace(DEFAULT_ZERO.offload_optimizer, device=offload),
        offload_param=replace(DEFAULT_ZERO.offload_param, device="none" if whole else offload),
    )
    return DeepSpeedSettings(
        **_alike(settings), bf16_master_weights_and_grads=halved, bf16_optimizer_states=halved, zero=zero
    )


def _alike(settings: TrainingSettings) -> dict[str, Any]:
    return {
        name: getattr(settings, name)
        for name in ("precision", "micro_batch", "gradient_accumulation", "gradient_clipping", "optimizer",
                     "client_optimizer")
    }  # fmt: skip


def changes(
    said: Mapping[str, Any],
    target: Mapping[str, Any],
    deepspeed: DeepSpeedSettings,
    fsdp2: Fsdp2Settings,
    *,
    forth: bool,
) -> tuple[Change, ...]:
    """What becomes of each key of a file, together where one row names them.

    Args:
        said: the values of a file by dotted key, as it has them.
        target: the new file's, where the rows' keys are looked up.
        forth: from DeepSpeed to FSDP2; else back.
    """
    rest, found = dict(said), list[Change]()
    for row in _ROWS:
        own, others = (row.deepspeed, row.fsdp2) if forth else (row.fsdp2, row.deepspeed)
        keys = {key: value for key, value in rest.items() if row is _ROWS[-1] or _is_of(key, own)}
        rest = {key: value for key, value in rest.items() if key not in keys}
        becomes = {name: value for name in others if (value := value_at(target, name)) is not None}
        text = row.by_script if row.by_script and not becomes else row.forth if forth else row.back
        text = text if isinstance(text, str) else text(deepspeed, fsdp2)
        kind = ("changed" if text else "kept") if becomes else "script" if row.by_script else "lost"
        # what is off is no loss, nor what is left open
        idle = {"lost": (False, None, "none", AUTO), "script": (False, None)}.get(kind)
        is_set = keys if idle is None else [key for key in keys if keys[key] not in idle]
        if is_set and (becomes or text):
            found.append(Change(kind=kind, keys=keys, becomes=becomes, text=text))
    return _in_order(found)


def _in_order(found: list[Change]) -> tuple[Change, ...]:
    return tuple(sorted(found, key=lambda change: KINDS.index(change.kind)))


def _is_of(key: str, names: tuple[str, ...]) -> bool:
    """Whether rows name a key of a file, or a block of it, by one of the names."""
    key = PLUGIN_KEYS.get(key.removeprefix("deepspeed_config."), _OTHERWISE.get(key, key))
    key = re.sub(r"^fsdp_config\.(?!fsdp_)", "fsdp_config.fsdp_", key).replace("stage3_", "")
    return any(f"{key}.".startswith(f"{name}.") for name in names)


REPLICAS = "parallelism_config.parallelism_config_dp_replicate_size"
_OTHERWISE = {
    "activation_checkpointing": "plan.activation_checkpointing",
    "groups of fsdp_sharding_strategy": REPLICAS,
}
"""What a plan for DeepSpeed has, whose file has nothing; and what several nodes make of a strategy."""


# ---- FSDP version 1, as `accelerate to-fsdp2` rewrites it (Accelerate 1.15, commands/to_fsdp2.py)

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
) -> tuple[dict[str, Any], dict[str, int], tuple[Change, ...]]:
    """A block of version 1 in the words of version 2, the ``parallelism_config`` beside it, and what changed.
    ``prefix``: of its keys: ``fsdp_``, or nothing in a Trainer's. ``ranks``: of the run; None: not said."""
    new, sizes, found = dict[str, Any](), dict[str, int](), list[Change]()
    for key, value in block.items():
        name, word = str(key).removeprefix("fsdp_"), str(value).upper().removeprefix("_")
        becomes, text = {str(key): value}, _GONE.get(name, "")
        if name == "reshard_after_forward" and f"{prefix}sharding_strategy" in block:
            becomes, text = {}, "version 1 reads the sharding strategy alone"
        elif name in ("sharding_strategy", "reshard_after_forward"):
            word = STRATEGIES[int(word) - 1] if word in ("1", "2", "3", "4", "5") else word
            becomes = {f"{prefix}reshard_after_forward": word in ("FULL_SHARD", "HYBRID_SHARD", "TRUE")}
            if word == "NO_SHARD":
                text = "FSDP2 divides weights, gradients and states; whole: distributed_type MULTI_GPU"
            elif word.startswith("HYBRID") and nodes > 1 and ranks is not None:
                sizes = groups(nodes, ranks)
        elif name == "state_dict_type" and word in ("LOCAL_STATE_DICT", "2"):
            becomes, text = {str(key): "SHARDED_STATE_DICT"}, "FSDP2 has no checkpoints in its own layout"
        elif name in (*_GONE, "version"):
            becomes = {}
        new |= becomes
        if text or becomes not in ({}, {key: value}):
            shown = {f"fsdp_config.{one}": said for one, said in becomes.items()}
            if "strategy" in name:
                shown |= {f"parallelism_config.{one}": size for one, size in sizes.items()}
            kind, keys = "changed" if text else "kept", {f"fsdp_config.{key}": value}
            found.append(Change(kind=kind if becomes else "lost", keys=keys, becomes=shown, text=text))
    return {f"{prefix}version": 2, **new}, sizes, _in_order(found)


def leaves(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of a file with their values; of a block that is off, that alone."""
    is_off = config.get("enabled") is False
    for name, value in config.items():
        if isinstance(value, Mapping) and not is_off:
            yield from leaves(value, f"{path}{name}.")
        elif not is_off or name == "enabled":
            yield f"{path}{name}", value
