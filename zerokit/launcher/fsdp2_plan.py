"""What a launch with a plan for FSDP2 has otherwise than one under DeepSpeed: the file that ``accelerate
launch`` is given, and what such a plan cannot be launched with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from zerokit.domain.fsdp2_config import is_true
from zerokit.emit import fsdp2
from zerokit.emit.files import ACCELERATE_NAME, CODE_NAME
from zerokit.emit.plan_file import PlanFile
from zerokit.errors import InputError
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Placement
from zerokit.notes import warning
from zerokit.script.arguments import ScriptOptions
from zerokit.temporary import is_temporary
from zerokit.units import counted
from zerokit.values import replace

_OF_THE_FILE = ("fsdp_config", "mixed_precision", "parallelism_config")
"""Blocks of ``accelerate.yaml`` that a user may have changed; ranks and machines are the launch's matter."""


def started_by_accelerate(options: LaunchOptions) -> LaunchOptions:
    """The options with Accelerate's launcher, which alone tells ranks of FSDP2. Raises InputError: another
    was asked for."""
    if options.launcher not in ("accelerate", "deepspeed"):  # the latter where none is named
        raise InputError(
            f"⟨launcher⟩ {options.launcher}: a plan for FSDP2 is started by accelerate; leave ⟨launcher⟩ out"
        )
    return replace(options, launcher="accelerate")


def check_placed(placement: Placement) -> None:
    """Whether a launch can start the ranks. Raises InputError: they are on several machines."""
    if placement.hosts is not None or placement.slurm is not None:
        raise InputError(
            "a plan for FSDP2 is launched on this machine alone; for several, `zerokit emit sbatch SCRIPT` "
            "or `emit kubernetes` writes a job"
        )


def check_reaches(plan: PlanFile, own: ScriptOptions, *, on_cpu: bool = False) -> tuple[str, ...]:
    """Whether FSDP2 can reach the script: warnings. Raises InputError: it cannot."""
    if own.own_deepspeed_file is not None:
        _, where = own.own_deepspeed_file
        raise InputError(f"{where}: the script would train under DeepSpeed, and the plan is for FSDP2")
    code = CODE_NAME if is_temporary(plan.folder) else shlex.quote(str(plan.folder / CODE_NAME))
    if own.style == "raw" or own.facts.calls_initialize:
        raise InputError(
            f"the plan is for FSDP2, and the script calls DeepSpeed itself: divide the model with shard() of "
            f"{code} instead, or plan again with ⟨engine⟩ deepspeed"
        )
    if own.style == "none":
        text = (
            "accelerate.yaml does not reach this script, which ends with exit code 9 if it does not divide "
            f"its model itself; shard() of {code} divides it as planned; if it uses Accelerate or a Trainer, "
            "say so with ⟨style⟩"
        )
        return (warning("unreached", text),)
    if on_cpu:  # accelerate 1.15, state.py:982
        return (
            warning("fsdp2-on-cpu", "Accelerate divides nothing on CPU ranks: the run ends with exit code 9"),
        )
    return ()


def accelerate_file(plan: PlanFile, ranks: int, nodes: int = 1) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What ``accelerate launch`` is given for so many ranks: the plan's strategy, with what stands otherwise
    in the ``accelerate.yaml`` beside it, which is said. Raises InputError: the file has errors, or the plan's
    groups of ranks are not those of the launch."""
    from zerokit.planner.one_strategy import read_checked

    body: dict[str, Any] = {**fsdp2.accelerate_config(plan.strategy(), nodes), "num_processes": ranks}
    path = plan.folder / ACCELERATE_NAME
    written = read_checked(str(path), ("accelerate",))[1] if path.is_file() else body
    changed = {name: written.get(name) for name in _OF_THE_FILE if written.get(name) != body.get(name)}
    body = {name: value for name, value in {**body, **changed}.items() if value is not None}
    if ranks != plan.world_size and "parallelism_config" in body:
        raise InputError(
            f"the plan has groups of ranks that hold all weights, of {counted(plan.world_size, 'rank')}, and "
            f"this run has {ranks}: plan again for as many ⟨gpus⟩"
        )
    text = f"{path}: {', '.join(changed)} changed since the plan was made; the run has it so"
    return body, (warning("changed-plan", text),) if changed else ()


def variables(accelerate: Mapping[str, Any]) -> dict[str, str]:
    """What ``accelerate launch`` tells each rank of the file (accelerate/utils/launch.py,
    ``prepare_multi_gpu_env`` and ``prepare_extend_env_parallelism_config``, 1.15)."""
    sizes = accelerate.get("parallelism_config") or {}
    told = {"ACCELERATE_USE_FSDP": True, **(accelerate.get("fsdp_config") or {}), **sizes}
    told |= {"ACCELERATE_USE_PARALLELISM_CONFIG": True} if sizes else {}
    told |= {"ACCELERATE_MIXED_PRECISION": accelerate.get("mixed_precision") or "no"}
    return {
        name.replace("_layer_cls_", "_cls_").upper(): as_variable(value)
        for name, value in told.items()
        if value is not None
    }


def as_variable(value: object) -> str:
    """Write a value as the launcher does."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def offload(accelerate: Mapping[str, Any]) -> dict[str, Any]:
    """Say it as a DeepSpeed configuration does: an optimizer steps on the host with the shards there."""
    device = "cpu" if is_true((accelerate.get("fsdp_config") or {}).get("fsdp_offload_params")) else "none"
    return {"zero_optimization": {"offload_optimizer": {"device": device}}}
