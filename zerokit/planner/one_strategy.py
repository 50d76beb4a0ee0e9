"""The one strategy that an estimate is for: a DeepSpeed file's, or plain values with what was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.domain.client_optimizers import with_optimizer
from zerokit.domain.deepspeed_settings import AUTO, DeepSpeedSettings, from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.errors import FileInputError, InputError
from zerokit.notes import Note, notes_of
from zerokit.planner.auto_values import batch_note, beside_auto, trainers_micro_batch, with_open_values
from zerokit.planner.effects import refuse_beside_file
from zerokit.planner.request import note_on_optimizer, refuse_strategy, resolve_optimizer
from zerokit.rules import Setup, violations
from zerokit.search.plan import choose_precision, make_space, nearest_batches
from zerokit.search.space import (
    Knobs,
    Layout,
    OffloadChoice,
    Pins,
    Request,
    build_strategy,
    layout_violation,
    refuse_placement,
)
from zerokit.units import counted
from zerokit.values import replace

if TYPE_CHECKING:
    from zerokit.linter.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyFile:
    """A DeepSpeed JSON.

    Attributes:
        config: as it stands in the file.
        settings: what DeepSpeed makes of it.
        remarks: what is no strict JSON, in the words of ``zerokit check``; DeepSpeed itself reads past it.
    """

    path: Path
    config: Mapping[str, Any]
    settings: DeepSpeedSettings
    remarks: tuple[str, ...] = ()


def refuse_errors(path: str, world_size: int | None = None, gpus_per_node: int | None = None) -> None:
    """Stop where ``zerokit check`` finds errors, with its own words; its warnings stop nothing.

    Raises:
        InputError: every error of the file, with its fix.
    """
    from zerokit.linter.deepspeed.file import Context
    from zerokit.linter.files import check_files
    from zerokit.planner.checking import for_versions

    with for_versions(None, None):
        context = Context(world_size=world_size, gpus_per_node=gpus_per_node)
        (checked,) = check_files([path], context, kind="deepspeed")
    errors = [finding for finding in checked.findings if finding.severity == "error"]
    if errors:
        raise InputError("\n".join(map(_as_check_shows, errors)))


def _as_check_shows(finding: Finding) -> str:
    location = f"{finding.path}:{finding.location.line}:{finding.location.column}"
    fix = f"\n  fix: {finding.marked_fix}" if finding.marked_fix else ""
    return f"{location}: error: {finding.marked} [{finding.rule}]{fix}"


def refuse_errors_on(path: str, strategy: Strategy, cluster: Cluster) -> None:
    """Stop at what DeepSpeed would refuse of a file on these GPUs.

    Its batch is set against the GPUs where every one of them reads a batch of its own.

    Raises:
        InputError: every error of the file, with its fix.
    """
    if strategy.world_size == strategy.data_parallel:
        refuse_errors(path, strategy.world_size, cluster.gpus_per_node)


def read_strategy_file(path: Path, options: Mapping[str, Any]) -> StrategyFile:
    """Read a DeepSpeed JSON that decides the strategy; ``options`` say what else was given.

    Raises:
        InputError: unreadable, what DeepSpeed would refuse, or an argument that the file decides.
    """
    from zerokit.linter.files import load_deepspeed

    document = load_deepspeed(path, strict=False)  # DeepSpeed reads past comments, too
    refuse_errors(str(path))
    refuse_beside_file(options, path, document.value)
    try:
        settings = from_config(document.value)
    except FileInputError:
        raise
    except InputError as error:
        raise InputError(f"{path}: {error.marked}") from None
    if settings.optimizer is None and options.get("optimizer"):
        settings = with_optimizer(settings, resolve_optimizer(options["optimizer"])[0])
    remarks = tuple(
        f"{path}:{problem.location.line}:{problem.location.column}: {problem.message}; fix: {problem.fix} "
        f"[{problem.rule}]"
        for problem in document.problems
    )
    return StrategyFile(path=path, config=document.value, settings=settings, remarks=remarks)


def one_strategy(request: Request, file: StrategyFile | None = None) -> tuple[Strategy, tuple[Note, ...]]:
    """The file's strategy, or plain values with what was given; and what was assumed.

    Raises:
        InputError: degrees, batch sizes or placements that cannot be.
    """
    pins, cluster = request.pins, request.cluster
    tensor = pins.tensor_parallel or (file.settings.autotp_size if file else 1)
    pipeline, sequence = pins.pipeline_parallel or 1, pins.sequence_parallel or 1
    if cluster.gpus % (tensor * pipeline * sequence):
        raise InputError(
            f"⟨tp⟩ {tensor} × ⟨pp⟩ {pipeline} × ⟨sp⟩ {sequence} does not divide ⟨gpus⟩ {cluster.gpus}"
        )
    layout = Layout(data=cluster.gpus // (tensor * pipeline * sequence), tensor=tensor, pipeline=pipeline,
                    sequence=sequence)  # fmt: skip
    refused = layout_violation(layout, request.shape, request.job, cluster, pins)
    if refused is not None:
        raise InputError(f"{refused.message}; {refused.fix}")
    checkpointing = pins.checkpointing or "none"
    if file is not None:
        settings, open_notes = with_open_values(file.settings, file.config, request)
        settings, notes = _with_batch(replace(file, settings=settings), layout.data, pins, request.job)
        notes = (*open_notes, *notes, *notes_of("optimizer", note_on_optimizer(settings.optimizer)))
        # refuse an offload that was given where the file's stage ignores it
        for name, given, least in (
            ("offload_optimizer", pins.offload_optimizer, 1),
            ("offload_param", pins.offload_param, 3),
        ):
            if given not in (None, "none") and settings.zero.stage < least:
                raise InputError(
                    f"⟨{name}⟩ {given}: stage {settings.zero.stage} ignores it; use ⟨zero⟩ {least}, or none"
                )
        settings, ignored = _without_ignored_offload(settings)
        notes = (*notes_of("ignored-offload", (f"{file.path}: {note}" for note in ignored)), *notes)
        if settings.client_optimizer is not None:
            refuse_placement(request.job, settings.zero.stage, settings.zero.offload_optimizer.device)
        if tensor != settings.autotp_size:
            settings = replace(settings, autotp_size=tensor)
        strategy = Strategy(settings=settings, checkpointing=checkpointing, **layout.degrees)
        refuse_strategy(request.job, strategy)
        return strategy, notes
    return _default_strategy(request, layout, checkpointing)


def _default_strategy(
    request: Request, layout: Layout, checkpointing: str
) -> tuple[Strategy, tuple[Note, ...]]:
    pins = request.pins
    precision, why = choose_precision(request.precision, request.cluster, request.on_cpu)
    micro, steps = _batch(request, layout.data)
    placement = OffloadChoice(
        stage=pins.zero_stage or 0,
        optimizer=pins.offload_optimizer or "none",
        parameters=pins.offload_param or "none",
    )
    if placement.stage == 0 and (placement.optimizer != "none" or placement.parameters != "none"):
        option = "⟨offload_optimizer⟩" if placement.optimizer != "none" else "⟨offload_param⟩"
        enough = "1, 2 or 3" if placement.parameters == "none" else "3"
        raise InputError(f"{option}: ZeRO stage 0 offloads nothing; add ⟨zero⟩ {enough}")
    refuse_placement(request.job, placement.stage, placement.optimizer)
    chosen = replace(Knobs(overlap_comm=pins.overlap_comm), **pins.sizes())
    job = replace(request.job, global_batch=micro * steps * layout.data)
    space = make_space(replace(request, job=job, precision=precision))[0]
    strategy = build_strategy(space, layout, placement, checkpointing, micro, steps, chosen)
    refuse_strategy(job, strategy)
    stage: tuple[Note, ...] = ()
    if pins.zero_stage is None and not request.job.inference:
        master = "" if precision == "fp32" else ", with fp32 master weights"
        text = (
            f"ZeRO stage 0 of DeepSpeed{master}: ⟨zero⟩ not given; for a script without DeepSpeed, "
            "`zerokit rehearse SCRIPT` says what is required"
        )
        stage = (Note("stage-assumed", text, "default", short="⟨zero⟩ 0"),)
    return strategy, (why, *stage)


def _batch(request: Request, ranks: int) -> tuple[int, int]:
    """Micro-batch and accumulation that meet what is given."""
    pins, batch = request.pins, request.job.global_batch
    micro, steps = pins.micro_batch, pins.gradient_accumulation
    if batch is None:
        return micro or 1, steps or 1
    if batch % ranks:
        raise InputError(
            f"⟨global_batch⟩ {batch} is not a multiple of {ranks} data-parallel ranks; "
            f"{nearest_batches(batch, ranks, pins)}"
        )
    per_rank = batch // ranks
    if micro is None:
        micro = per_rank // (steps or per_rank)  # not given: one sequence at a time
        micro = micro or 1
    if per_rank % micro or (steps is not None and micro * steps != per_rank):
        raise InputError(
            f"⟨global_batch⟩ {batch} is not micro-batch {micro} × accumulation × "
            f"{counted(ranks, 'data-parallel rank')}; {nearest_batches(batch, ranks, pins)}"
        )
    return micro, per_rank // micro


def _with_batch(
    file: StrategyFile, ranks: int, pins: Pins, job: Job
) -> tuple[DeepSpeedSettings, tuple[Note, ...]]:
    """The file's batch sizes, completed as DeepSpeed does (runtime/config.py, _set_batch_related)."""

    def number(key: str) -> int | None:
        value = file.config.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    train = number("train_batch_size") or job.global_batch
    steps = number("gradient_accumulation_steps") or pins.gradient_accumulation
    micro = number("train_micro_batch_size_per_gpu") or pins.micro_batch
    notes = list[Note]()
    if micro is None:
        filled = file.config.get("train_micro_batch_size_per_gpu") == AUTO
        if filled:
            micro = trainers_micro_batch(train, ranks, steps)
        else:
            micro = 1 if train is None else max(1, train // ranks // (steps or 1))
        if train is None or filled:
            notes += batch_note(file.config, "train_micro_batch_size_per_gpu", micro)
    if steps is None:
        filled = file.config.get("gradient_accumulation_steps") == AUTO
        never = train is None or (filled and train % (micro * ranks))
        steps = 1 if train is None or never else max(1, train // micro // ranks)
        if train is None or filled:
            notes += batch_note(file.config, "gradient_accumulation_steps", steps)
    notes += notes_of("beside-auto", beside_auto(file.config, micro, steps, ranks))
    if job.global_batch is not None and micro * steps * ranks != job.global_batch:
        raise InputError(
            f"⟨global_batch⟩ {job.global_batch} is not {micro} per GPU × {steps} accumulation × {ranks} "
            f"data-parallel ranks, with {file.path}; leave it out or change the others"
        )
    return replace(file.settings, micro_batch=micro, gradient_accumulation=steps), tuple(notes)


_IGNORED_OFFLOAD = {
    "offload-param-below-stage-3": ("offload_param", "none"),
    "nvme-below-stage-3": ("offload_optimizer", "cpu"),
    "offload-optimizer-at-stage-0": ("offload_optimizer", "none"),
}
"""Rule about an offload that DeepSpeed ignores -> the block, and the device that it comes to."""


def _without_ignored_offload(settings: DeepSpeedSettings) -> tuple[DeepSpeedSettings, tuple[str, ...]]:
    """The settings as DeepSpeed follows them, and what it ignores, in the words of the rules."""
    notes: list[str] = []
    for found in violations(Setup(settings=settings)):
        if found.rule.id in _IGNORED_OFFLOAD:
            name, device = _IGNORED_OFFLOAD[found.rule.id]
            offload = replace(getattr(settings.zero, name), device=device)
            settings = replace(settings, zero=replace(settings.zero, **{name: offload}))
            notes.append(f"{found.message}; estimated so")
    return settings, tuple(notes)
