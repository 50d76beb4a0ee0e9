"""After an out-of-memory: the next plan that would fit, made again from the request that the plan records;
after a run that did another job than its plan's: the prediction for the job that ran.

What the configuration alone can change is left free (ZeRO stage, offload, buckets, and the micro-batch
where the script takes it from the engine); what the script decides stays as it was (the degrees of
parallelism, precision, activation checkpointing). Where nothing fits with a micro-batch that the script
fixes, it is left free too, and the script must be given the new one. The global batch stays the same, so
that the training does. The memory that the new plan may need is the old prediction, less what the run
showed it lacked, and never more than the GPU has.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from zerokit import planner
from zerokit.domain.planned import Chosen, degrees, global_batch
from zerokit.domain.settings import BY_OPTION, SETTINGS, sharing_option
from zerokit.emit import plan_file
from zerokit.errors import InputError, NothingFits, ZerokitError
from zerokit.fields import as_options
from zerokit.launcher.launch import Launch
from zerokit.launcher.run_folder import NEXT_PLAN_FOLDER
from zerokit.machine.host import detect_host
from zerokit.planner.effects import IN_FILE
from zerokit.planner.options import OPTIONS
from zerokit.report.predicted import PredictAgain, PredictedAgain, plan_as_ran
from zerokit.report.schema import Difference, NextPlan, RunReport
from zerokit.report.what_ran import chosen_as_ran
from zerokit.temporary import temporary_folder
from zerokit.units import format_gib, parse_bytes

_BATCH = [SETTINGS[name] for name in ("micro_batch", "gradient_accumulation")]
_DEGREES = [SETTINGS[name] for name in ("tensor_parallel", "pipeline_parallel")]
_FIXED = [*_BATCH, *(SETTINGS[name] for name in ("zero_stage", "offload_optimizer", "offload_param"))]
_CHANGED = ("zero_stage", "reshard_after_forward", "replicas", "offload_optimizer", "offload_param",
            "data_parallel", "micro_batch", "gradient_accumulation")  # fmt: skip
_WORDS = {"data_parallel": "data parallel", "micro_batch": "micro-batch", "replicas": "replicas",
          "reshard_after_forward": "reshard after forward"}  # fmt: skip


_FROM_THE_FILE = frozenset((*IN_FILE, "tp"))
"""Options that the plan's DeepSpeed configuration decides, which the estimate is made of."""
_OF_THE_JOB = ("seq-len", "method", "lora-rank", "lora-targets")
"""Options of a request in which what ran may differ from it."""


PlanAgain = Callable[[Mapping[str, Any], Path], None]
"""Plans a request, by the names of the planner's options, and writes the plan into a folder.

Raises:
    ZerokitError: it cannot be planned, or nothing fits.
"""


class NoNextPlan(Exception):
    """Why there is no plan to try next."""


class _SamePlan(NoNextPlan):
    """Planning again chose what ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerPlan:
    """A plan that would fit, in a folder that ``zerokit launch --plan`` takes: ``limit_bytes`` is what a rank
    may need, as the planner was told, ``to_give`` the batch for a script that fixes its own."""

    folder: Path
    plan: plan_file.PlanFile
    limit_bytes: int
    to_give: str | None = None

    def __str__(self) -> str:
        return f"the script fixes its own batch; give it {self.to_give}" if self.to_give else str(self.folder)

    def describe(self) -> NextPlan:
        """For ``first_failure.next_plan`` of the report."""
        chosen = self.plan.chosen
        return NextPlan(
            folder=self.folder.name,
            to_give=self.to_give,
            limit_bytes=self.limit_bytes,
            min_vram_bytes=chosen["estimate"]["min_vram_bytes"],
            why=chosen.get("why"),
            strategy={k: v for k, v in chosen.items() if k not in ("deepspeed_config", "estimate")},
        )


def why_not(launch: Launch) -> str | None:
    """Why no other plan could change what this run does; None where one can."""
    option_names = {argument.partition("=")[0] for argument in launch.options.target.arguments}
    if launch.plan is None:
        return "no plan was given (⟨plan⟩ or ⟨recipe⟩): the configuration is the script's own"
    if launch.style == "none":
        return "the plan's configuration does not reach this script"
    if "--deepspeed_config" in option_names or (launch.style == "trainer" and "--deepspeed" in option_names):
        return "the script was given a DeepSpeed configuration of its own, which goes before the plan's"
    return None


_BLIND_SHARE = 0.8
"""Of the predicted peak, that is tried next where the failure did not tell how much was lacking."""
_LEAST_STEP = 0.97  # what needs all but the same would fail in the same way


def share_that_fits(oom: Mapping[str, Any]) -> float | None:
    """The share of the predicted peak that the next run may reach; None: the failure does not tell.

    At the failure ``reserved + free`` was all that the rank could get of the device (less, where a limit
    was set for the process: it could not get ``allocated + asked``). It wanted ``allocated + asked``, or at
    least what was predicted. The next prediction is to be smaller than the last by that ratio: so a
    prediction that was too low is corrected, and a device that others fill too.
    """
    names = ("reserved_bytes", "device_free_bytes", "allocated_bytes", "asked_bytes")
    values = [oom.get(name) for name in names]
    if any(value is None for value in values):
        return None
    reserved, free, allocated, requested = (int(value or 0) for value in values)
    required = max(allocated + requested, int(oom.get("predicted_peak_allocated_bytes") or 0), 1)
    return min(_LEAST_STEP, min(reserved + free, allocated + requested) / required)


def larger_than_memory(oom: Mapping[str, Any], host_bytes: int | None) -> str | None:
    """Say that one request is more than the whole GPU or host (``host_bytes``) holds, so that no plan helps;
    None where it is not."""
    on_host = oom.get("memory") == "host"
    requested, total = oom.get("asked_bytes"), host_bytes if on_host else oom.get("device_total_bytes")
    if not requested or not total or requested <= total:
        return None
    return (
        f"one request of {format_gib(requested)} is more than the whole {'host' if on_host else 'GPU'} has "
        f"({format_gib(total)}), and no plan makes room for it: look at the line that raised it, and at the "
        "batch and sequence length there"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shortage:
    """What went out of memory (``ran``: the plan, with what ran in place of what was planned), and how much
    its next plan may need. ``told``: the share of the predicted peak that the next run may reach; None: the
    failure does not tell. ``request``: the options of the next plan."""

    ran: Mapping[str, Any]
    peak: int
    told: float | None
    share: float
    limit_bytes: int
    on_host: bool
    request: dict[str, Any]


def _shortage(launch: Launch, report: RunReport) -> _Shortage:
    """How much memory the run lacked. Raises NoNextPlan: no other plan would help, or nothing tells how much;
    for people."""
    failure = report.first_failure
    reason = why_not(launch)
    if reason is not None or launch.plan is None:
        raise NoNextPlan(reason or "no plan was given")
    ranks = [rank.model_dump(mode="json") for rank in report.ranks]
    engines = [rank["engine"] for rank in ranks]
    ran = plan_as_ran(ranks, launch.plan, predictor(launch.style, engines)) or {}
    chosen = ran["chosen"]
    needed, peak = _predicted(chosen, "min_vram_bytes"), _predicted(chosen, "peak_allocated_bytes")
    if needed is None or peak is None:
        whose = "the plan has" if ran is launch.plan else "what ran is not the plan's job, and has"
        raise NoNextPlan(f"{whose} no prediction to go below")
    oom = failure.oom.to_dict() if failure is not None and failure.oom is not None else {}
    on_this_host = failure is not None and failure.host == launch.host
    too_large = larger_than_memory(oom, detect_host().ram_bytes if on_this_host else None)
    if too_large is not None:
        raise NoNextPlan(too_large)
    told = share_that_fits(oom)
    share = _BLIND_SHARE if told is None else told
    limit = needed - int(peak * (1 - share))  # what is beside the tensors (the context, say) stays
    said = [oom.get("device_total_bytes"), *(rank.device_total_bytes for rank in report.ranks)]
    vram = ran["request"].get("vram")
    limit = min([limit, *[int(size) for size in said if size][:1]])
    if vram and not any(said):  # neither the failure nor a rank says what the GPU has, but the plan does
        limit = min(limit, parse_bytes(vram))
    # a node's memory, beside GPUs; on CPU ranks it is what stands for the GPUs'
    on_host = oom.get("memory") == "host" and launch.command.set_variables["ZEROKIT_DEVICE"] == "cuda"
    request = smaller_request(launch, ran, limit, on_host=on_host)
    return _Shortage(
        ran=ran, peak=peak, told=told, share=share, limit_bytes=limit, on_host=on_host, request=request
    )


def ways_to_fit(launch: Launch, report: RunReport) -> list[str]:
    """What `zerokit estimate` says to change of the strategy that went out of memory, for as much memory as
    the next plan may need; empty where it cannot be estimated, or is rehearsed: an estimate is of a bare
    loop."""
    try:
        short = _shortage(launch, report)
        chosen = short.ran["chosen"]
        fixed = {one.option: str(chosen[one.name]) for one in _FIXED if chosen.get(one.name) is not None}
        options = {name.replace("-", "_"): value for name, value in (short.request | fixed).items()}
        estimated = planner.estimate(options)
    except (NoNextPlan, ZerokitError):
        return []
    is_told = estimated.fits is False and "rehearsed" not in chosen
    return [as_options(sentence) for sentence in (estimated.nearest() if is_told else ())]


def next_plan(launch: Launch, report: RunReport, plan_again: PlanAgain) -> SmallerPlan:
    """Plan again, into ``next-plan/`` of the run folder, with less memory than what the reported run went out
    of. Raises NoNextPlan: with the reason, for people."""
    short = _shortage(launch, report)
    request, limit, chosen = short.request, short.limit_bytes, short.ran["chosen"]
    folder = launch.run_dir / NEXT_PLAN_FOLDER
    try:
        plan = _another_plan(request, chosen, limit, folder, plan_again)
        return SmallerPlan(folder=folder, plan=plan, limit_bytes=limit)
    except NoNextPlan as error:
        if short.on_host:
            raise
        why_none = error
    kept = "batch"
    if not launch.micro_batch_free and chosen["micro_batch"] > 1:
        fixed = {one.option for one in _BATCH}
        free = {name: value for name, value in request.items() if name not in fixed}
        try:
            plan = _another_plan(free, chosen, limit, folder, plan_again)
            to_give = _to_give(launch, chosen, plan.chosen)
            return SmallerPlan(folder=folder, plan=plan, limit_bytes=limit, to_give=to_give)
        except NoNextPlan as error:
            why_none, kept = error, "global batch"
    if isinstance(why_none, _SamePlan):
        raise why_none
    unit = "CPU rank" if request.get("device") == "cpu" else "GPU"
    blind = ", as the failure does not say how much was lacking" if short.told is None else ""
    raise NoNextPlan(
        f"planned again for {format_gib(limit)} per {unit}, {format_gib(int(short.peak * short.share))} of "
        f"it for the peak ({short.share:.0%} of the predicted one{blind}), with this run's {kept}, "
        f"precision, checkpointing and parallel degrees: {why_none}"
    )


def _another_plan(
    request: Mapping[str, Any], ran: Mapping[str, Any], limit_bytes: int, folder: Path, plan_again: PlanAgain
) -> plan_file.PlanFile:
    """Plan this request, for another configuration than what ran. The run is over: nothing that goes wrong
    here may spoil its end. Raises NoNextPlan: with the reason."""
    failed: NoNextPlan
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plan_again({name.replace("-", "_"): value for name, value in request.items()}, folder)
        plan = plan_file.read(folder)
        # the file is the plan's, the batch what ran
        names = ("deepspeed_config", "accelerate_config", *(one.name for one in _BATCH))
        if any(plan.chosen.get(name) != ran.get(name) for name in names):
            return plan
        failed = _SamePlan(
            f"planning again gives the same configuration, predicted to fit {format_gib(limit_bytes)}: this "
            "script takes more; plan with one of the ways to need less"
        )
    except OSError as error:
        failed = NoNextPlan(f"{folder}: {error.strerror}")
    except ZerokitError as error:
        failed = NoNextPlan(as_options(error.marked))
    except Exception as error:  # what a trace of somebody's model may raise
        failed = NoNextPlan(f"{type(error).__name__}: {error}")
    shutil.rmtree(folder, ignore_errors=True)
    raise failed


def _to_give(launch: Launch, ran: Mapping[str, Any], planned: Mapping[str, Any]) -> str | None:
    """The batch of the next plan, where the script's own is another and it does not follow the plan."""
    typed = {argument.partition("=")[0] for argument in launch.options.target.arguments}
    options = {f"--{one.trainer}": one.name for one in _BATCH}
    micro_option, accumulation_option = options
    added = launch.added_arguments
    if micro_option in added and (accumulation_option in added or accumulation_option not in typed):
        return None  # the next launch adds its own
    if launch.style == "trainer":
        changed = (name for name in options.items() if planned[name[1]] != ran[name[1]])
        return " ".join(f"{option} {planned[name]}" for option, name in changed)
    micro, accumulation = planned["micro_batch"], planned["gradient_accumulation"]
    return f"a batch of {micro} per GPU and gradient accumulation {accumulation}"


def _predicted(chosen: Mapping[str, Any], name: str) -> int | None:
    estimate = chosen.get("estimate")
    value = estimate.get(name) if isinstance(estimate, Mapping) else None
    return value if isinstance(value, int) and value > 0 else None


def smaller_request(
    launch: Launch, ran: Mapping[str, Any], limit_bytes: int, *, on_host: bool
) -> dict[str, Any]:
    """The options of the next plan, which is for what ran."""
    request, chosen = dict(ran["request"]), cast(Chosen, ran["chosen"])
    gpu = (ran.get("cluster") or {}).get("gpu")
    world = launch.planned_ranks or 1
    divided = degrees(chosen)
    request |= {
        "gpus": str(world),
        "global-batch": str(global_batch(chosen)),
        "checkpointing": chosen.get("activation_checkpointing", "none"),
        "precision": chosen["precision"],
        **{one.option: str(divided[one.name]) for one in _DEGREES},
        sharing_option(chosen.get("engine", "deepspeed")): str(divided["sequence_parallel"]),
    }
    for one in _BATCH:
        request.pop(one.option, None)
        if not launch.micro_batch_free:
            request[one.option] = str(ran["chosen"][one.name])
    if gpu == "cpu" or request.get("device") == "cpu":
        request |= {"device": "cpu", "host-ram": f"{limit_bytes * world}B"}
        return {name: value for name, value in request.items() if name not in ("gpu", "vram", "tp", "sp")}
    if "gpu" not in request and isinstance(gpu, str):
        if "vram" not in request and "host-ram" not in request:  # the plan was for this machine
            host_bytes = detect_host().ram_bytes
            request |= {"host-ram": f"{host_bytes}B"} if host_bytes else {}
        request["gpu"] = gpu
    if on_host:
        host_bytes = int(chosen["estimate"].get("host_bytes_per_node") or 0)
        return request | {"host-ram": f"{max(1, int(host_bytes * _BLIND_SHARE))}B"}
    return request | {"vram": f"{limit_bytes}B"}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What the next plan does otherwise: ``ZeRO stage 1 → 2, micro-batch 4 → 2``."""
    differences = [
        f"{_WORDS.get(name) or SETTINGS[name].label} {before.get(name)} → {after.get(name)}"
        for name in _CHANGED
        if before.get(name) != after.get(name)
    ]
    old, new = (_predicted(one, "min_vram_bytes") for one in (before, after))
    sizes = f"; predicted to need {format_gib(new)} instead of {format_gib(old)}" if old and new else ""
    return (", ".join(differences) or "other bucket sizes") + sizes


# ---- the prediction for another job than the plan's


def predictor(style: str, engines: Iterable[Mapping[str, Any] | None]) -> PredictAgain | None:
    """What predicts a run for what its ranks' engines ran with; None where a Trainer's loss takes more rows
    than its batch has (pairs, as DPO's, or groups): it is none that an estimate knows."""
    pairs = style == "trainer" and any(
        (engine.get("batch_rows") or 0) > (engine.get("loader_rows") or engine.get("micro_batch") or 0) > 0
        for engine in engines
        if engine
    )
    return None if pairs else predict_again


def predict_again(plan: Mapping[str, Any], differing: list[Difference]) -> PredictedAgain:
    """The plan with the estimate for what ran, where the batch, length, accumulation, precision, stage,
    checkpointing or optimizer differ, or LoRA's rank and modules, or all weights were trained. No plan where
    something differs that a plan's options cannot say (another model, a second engine, adapters that are not
    LoRA alone) or the estimate cannot be made."""
    request, chosen = plan.get("request"), plan.get("chosen")
    if not isinstance(request, Mapping) or not isinstance(chosen, Mapping):
        return PredictedAgain(why_not="the plan does not say what it was made for")
    if chosen.get("engine") == "fsdp2":
        return PredictedAgain(why_not="a plan for FSDP2 is not estimated again for what ran")
    config = json.loads(json.dumps(chosen.get("deepspeed_config") or {}))
    plan_options = {option.name for option in OPTIONS} - _FROM_THE_FILE
    options = {
        name: str(value) for key, value in request.items() if (name := key.replace("-", "_")) in plan_options
    }
    options["checkpointing"] = str(chosen.get("activation_checkpointing", "none"))
    for difference in differing:
        if not _apply(difference, config, options):
            return PredictedAgain(why_not=f"no option of a plan says it: {difference.text}")
    micro = config.get("train_micro_batch_size_per_gpu")
    accumulation = config.get("gradient_accumulation_steps", 1)
    if isinstance(micro, int) and isinstance(accumulation, int):
        config["train_batch_size"] = micro * accumulation * int(chosen.get("data_parallel") or 1)
    with temporary_folder("predict") as folder:
        path = folder / "ds_config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        try:
            answer = planner.estimate(options, deepspeed=path)
        except (InputError, NothingFits) as error:
            return PredictedAgain(why_not=str(error))
    ran = {**chosen_as_ran(chosen, differing), "estimate": answer.to_dict()}
    asked = {name: options[key] for name in _OF_THE_JOB if (key := name.replace("-", "_")) in options}
    return PredictedAgain(plan={**plan, "request": {**request, **asked}, "chosen": ran})


def _apply(difference: Difference, config: dict[str, Any], options: dict[str, str]) -> bool:
    """Put what ran in place of what was planned; whether that could be said."""
    value, setting = difference.ran, BY_OPTION.get(difference.option or "")
    name = setting.name if setting is not None else ""
    if setting is None or (name == "method" and value != "all" and difference.lora is None):
        return False
    if name == "method":
        for adapters in ("lora_rank", "lora_targets"):
            options.pop(adapters, None)
        options["method"] = "full"
        if difference.lora is not None:
            options["method"], options["lora_rank"] = "lora", str(difference.lora.rank)
            options["lora_targets"] = ",".join(difference.lora.targets)
    elif name == "activation_checkpointing" and value in ("none", "full"):
        options["checkpointing"] = value
    elif name == "precision" and value in ("bf16", "fp16", "fp32"):
        config["bf16"], config["fp16"] = {"enabled": value == "bf16"}, {"enabled": value == "fp16"}
    elif name == "optimizer":
        config["optimizer"] = {"type": value}
        config["zero_allow_untested_optimizer"] = True  # DeepSpeed took it
    elif name == "seq_len" and value.isdigit():
        options["seq_len"] = value
    elif value.isdigit() and setting.deepspeed:
        *blocks, key = setting.deepspeed.split(".")
        block = config
        for one in blocks:
            block = block.setdefault(one, {})
        block[key] = int(value)
    else:
        return False
    return True
