"""The strategy of an accelerate YAML with FSDP2 or DeepSpeed, or of a Trainer's arguments with FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.fsdp2_config import Fsdp2Config, from_accelerate, from_arguments
from zerokit.domain.fsdp2_settings import PARALLELISM_PREFIX
from zerokit.domain.settings import PLUGIN_KEYS, PLUGINS_STAGE
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.notes import Note, notes_of
from zerokit.planner.effects import is_given
from zerokit.planner.one_strategy import (
    StrategyFile,
    batch_of,
    left_open,
    read_checked,
    read_strategy_file,
    settings_beside,
)
from zerokit.planner.options import OPTIONS
from zerokit.planner.request import refuse_strategy
from zerokit.search.fsdp2_space import frozen_bytes, refuse_optimizer, trained_bytes
from zerokit.search.plan import choose_precision
from zerokit.search.space import Layout, Request, refuse_layout
from zerokit.values import frozen_dataclass, replace

_READ = ("checkpointing", "offload_activations")
"""Of the options of a strategy, those that FSDP2's file leaves to the script."""


@frozen_dataclass
class Fsdp2File:
    """A file with FSDP2. ``says``: what it says of the engine. ``ignored``: what ``zerokit check`` finds that
    changes nothing, with its fix."""

    path: Path
    says: Fsdp2Config
    ignored: tuple[str, ...] = ()


def read_accelerate_file(
    path: Path, options: Mapping[str, Any]
) -> tuple[Fsdp2File | StrategyFile, dict[str, Any]]:
    """Read a file, or the DeepSpeed JSON that it names; with the options, the number of GPUs and the batch
    that it says among them. Raises InputError: it cannot be read, errors in it, another engine, what is not
    modelled, or an argument that the file decides."""
    kind, value, ignored = read_checked(str(path), ("accelerate", "arguments"))
    runs = value.get("distributed_type") if kind == "accelerate" else "FSDP" if value.get("fsdp") else None
    try:
        if runs == "FSDP":
            says = (
                from_accelerate(value)
                if kind == "accelerate"
                else from_arguments(whole_arguments(value, path))
            )
            filled = _filled(options, {**says.batch, "gpus": says.processes, "nodes": says.nodes})
            _refuse_decided(options, says, kind)
            for option in OPTIONS:
                if option.group == "Strategy" and option.name not in _READ and is_given(options, option.name):
                    raise InputError(f"⟨{option.name}⟩: FSDP2 does not read it; leave it out")
            if not filled.get("gpus"):
                raise InputError("does not say on how many ranks it runs; give ⟨gpus⟩ N")
            return Fsdp2File(path=path, says=says, ignored=ignored), filled
    except InputError as error:
        raise InputError(f"{path}: {error.marked}") from None
    if runs != "DEEPSPEED":
        raise InputError(
            f"{path}: uses neither FSDP nor DeepSpeed; `zerokit rehearse SCRIPT` tells whether its run fits"
        )
    filled = _filled(options, {"gpus": value.get("num_processes"), "nodes": value.get("num_machines")})
    block = value.get("deepspeed_config") or {}
    if named := block.get("deepspeed_config_file"):
        return read_strategy_file(Path(named), filled), filled
    config = plugins_config(block, value.get("mixed_precision"))
    settings = settings_beside(options, path, config)
    return StrategyFile(path=path, config=config, settings=settings, remarks=ignored), filled


def _refuse_decided(options: Mapping[str, Any], says: Fsdp2Config, kind: str) -> None:
    """Refuse what the file decides otherwise. Raises InputError: names its key, with the value."""
    precision, offload = says.settings.precision, ("fsdp_offload_params", str(says.settings.offload).lower())
    decided = {
        "checkpointing": ("fsdp_activation_checkpointing", "true") if says.checkpointing else None,
        "precision": ("mixed_precision", precision) if says.names_precision else None,
    }
    if kind == "accelerate":
        decided |= dict.fromkeys(("offload_optimizer", "offload_param"), offload)
        decided |= {
            "engine": ("distributed_type", "FSDP"),
            "cp": (f"{PARALLELISM_PREFIX}cp_size", str(says.shared)),
        }
    same = {"checkpointing": "full", "precision": precision}
    for name, key in decided.items():
        if key and is_given(options, name) and options[name] != same.get(name):
            raise InputError(
                f"⟨{name}⟩ {options[name]}: the file decides it: set {key[0]} ({key[1]} now) in it, or leave "
                f"out ⟨{name}⟩"
            )


def fsdp2_strategy(request: Request, file: Fsdp2File) -> tuple[Strategy, tuple[Note, ...]]:
    """The file's strategy with the batch that was given; and what was assumed. Raises InputError: ranks or
    batch sizes that cannot be."""
    says, job, pins = file.says, request.job, request.pins
    ranks, replicas, shared = request.cluster.gpus, says.settings.replicas, says.shared
    shards = says.shards or ranks // (replicas * shared)
    if shards * replicas * shared != ranks:
        together = f" × {shared} of a sequence" if shared > 1 else ""
        raise InputError(
            f"{file.path}: {replicas} replicas of {shards} shards{together} are for "
            f"{shards * replicas * shared} ranks, and ⟨gpus⟩ is {ranks}; change "
            "parallelism_config_dp_shard_size, or leave ⟨gpus⟩ out"
        )
    data = shards * replicas
    layout = Layout(data=data, tensor=1, pipeline=1, sequence=shared)
    refuse_layout(layout, replace(request, pins=replace(pins, engine="fsdp2")), f"{file.path}: ")
    if request.cluster.on_cpu:  # accelerate 1.15, state.py:982
        raise InputError(f"{file.path}: ⟨device⟩ cpu: Accelerate divides nothing on CPU ranks")
    if job.inference:
        raise InputError(f"⟨inference⟩: {file.path} is for training")
    refuse_optimizer(job)
    remarks = (*file.ignored, *(f"{file.path}: {text}" for text in says.remarks))
    settings = replace(says.settings, master_bytes=trained_bytes(job, says.settings.precision))
    notes = notes_of("file-remark", remarks)
    if not says.names_precision:
        given = "fp32" if request.precision == "auto" else request.precision
        precision = choose_precision(given, request.cluster)[0]
        settings = replace(settings, precision=precision, master_bytes=4 if precision == "fp32" else 2)
        why = "names no mixed precision: weights are as the script loads them; ⟨precision⟩ to change"
        notes += (left_open(f"precision {precision}", why),) if request.precision == "auto" else ()
    micro, steps = batch_of(request, data)
    if pins.micro_batch is None and job.global_batch is None:
        why = "leaves the batch to the script; give ⟨micro_batch⟩"
        notes += (left_open(f"micro-batch {micro}", why),)
    if pins.gradient_accumulation is None and job.global_batch is None:
        why = "leaves it to the script; give ⟨gradient_accumulation⟩: more than 1 may keep whole gradients"
        notes += (left_open(f"gradient accumulation {steps}", why),)
    by_script = client_optimizer(job.optimizer) is not None
    settings = replace(
        settings, frozen_bytes=frozen_bytes(pins, job, settings.precision),
        micro_batch=micro, gradient_accumulation=steps, gradient_clipping=1.0,
        optimizer=None if by_script else job.optimizer, client_optimizer=job.optimizer if by_script else None,
        torch_adam=job.torch_adam,
    )  # fmt: skip
    checkpointing = "full" if says.checkpointing else pins.checkpointing or "none"
    strategy = Strategy(
        settings=settings, data_parallel=data, sequence_parallel=shared, checkpointing=checkpointing
    )
    refuse_strategy(job, strategy)
    return strategy, notes


def _filled(options: Mapping[str, Any], says: Mapping[str, int | None]) -> dict[str, Any]:
    """The options, with what the file says where none does; its nodes are those of its own ranks."""
    taken = {name: number for name, number in says.items() if number is not None and not options.get(name)}
    if options.get("gpus") or options.get("device") == "cpu":
        taken.pop("nodes", None)
    return {**options, **taken}


def plugins_config(block: Mapping[str, Any], precision: object) -> dict[str, Any]:
    """The DeepSpeed configuration that Accelerate makes of its own keys; the batch is the DataLoader's."""
    config: dict[str, Any] = {"zero_optimization": {"stage": PLUGINS_STAGE}}
    for key, path in PLUGIN_KEYS.items():
        if block.get(key) is not None:
            *parents, name = path.split(".")
            at = config
            for parent in parents:
                at = at.setdefault(parent, {})
            at[name] = int(block[key]) if key == "zero_stage" else block[key]
    # without quotes, no is a boolean in YAML; beside fp8 DeepSpeed runs in bf16 (set_mixed_precision)
    if precision is not None:
        enabled = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}.get(str(precision).lower())
        config |= {name: {"enabled": name == enabled} for name in ("bf16", "fp16")}
    return config


def whole_arguments(arguments: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The arguments with the ``fsdp_config`` in place of the name of its file."""
    from zerokit.linter.arguments_file import find_beside
    from zerokit.strictload import load_json

    named = arguments.get("fsdp_config")
    if not isinstance(named, str) or not named:
        return arguments
    beside = find_beside(named, str(path))
    if beside is None:
        raise InputError(f"fsdp_config {named}: there is no such file")
    return {**arguments, "fsdp_config": load_json(beside, strict=False).value}
