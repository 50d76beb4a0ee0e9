"""The one strategy that an estimate is for: a DeepSpeed file's, or plain values with what was given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.domain.client_optimizers import with_optimizer
from zerokit.domain.deepspeed_settings import AUTO, DeepSpeedSettings, ZeroSettings, from_config
from zerokit.domain.fsdp2_config import count
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import TORCH_ADAMW, Job
from zerokit.domain.settings import PLUGINS_STAGE, TRAINERS_MICRO_BATCH
from zerokit.domain.strategy import Strategy
from zerokit.errors import FileInputError, InputError
from zerokit.notes import Note, notes_of
from zerokit.planner.effects import refuse_beside_file
from zerokit.planner.request import note_on_optimizer, refuse_strategy, resolve_optimizer
from zerokit.rules import Setup, violations
from zerokit.search.deepspeed_space import refuse_placement
from zerokit.search.engines import build_strategy, engine_of
from zerokit.search.plan import choose_precision, make_space, nearest_batches
from zerokit.search.space import (
    Layout,
    Pins,
    Request,
    refuse_layout,
)
from zerokit.units import counted
from zerokit.values import replace

if TYPE_CHECKING:
    from zerokit.linter.deepspeed.file import Context
    from zerokit.linter.files import CheckedFile
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
    """Stop where ``zerokit check`` finds errors, with its own words; its warnings stop nothing. Raises
    InputError: every error of the file, with its fix."""
    from zerokit.linter.deepspeed.file import Context

    _checked(path, Context(world_size=world_size, gpus_per_node=gpus_per_node), "deepspeed")


def read_checked(
    path: str, kinds: Sequence[str], *, passes: Collection[str] = ()
) -> tuple[str, Mapping[str, Any], tuple[str, ...]]:
    """The kind of a file, what it holds, and what it says without effect, in the words of ``zerokit check``.
    ``passes``: rules whose errors stop nothing. Raises InputError: every error of the file, with its fix; or
    a file of another kind."""
    from zerokit.linter.deepspeed.file import Context

    checked = _checked(path, Context(), None, passes)
    if checked.kind not in kinds or checked.document is None or not isinstance(checked.document.value, dict):
        of_deepspeed = ", DeepSpeed's JSON" if "deepspeed" in kinds else ""
        raise InputError(f"{path}: is no accelerate YAML{of_deepspeed} or Trainer's arguments with fsdp")
    ignored = (finding for finding in checked.findings if finding.rule in _IGNORED_KEYS)
    shown = tuple(f"{one.where}: {one.marked}; fix: {one.marked_fix} [{one.rule}]" for one in ignored)
    return checked.kind, checked.document.value, shown


_IGNORED_KEYS = (
    "accelerate-ignored-key", "accelerate-unknown-key", "accelerate-fsdp-version-key",
    "arguments-fsdp-ignored-key",
)  # fmt: skip


def _checked(path: str, context: Context, kind: str | None, passes: Collection[str] = ()) -> CheckedFile:
    from zerokit.linter.files import check_files
    from zerokit.planner.checking import for_versions

    with for_versions(None, None):
        checked = check_files([path], context, kind=kind)[0]
    errors = [
        finding for finding in checked.findings if finding.severity == "error" and finding.rule not in passes
    ]
    if errors:
        raise InputError("\n".join(map(_as_check_shows, errors)))
    return checked


def _as_check_shows(finding: Finding) -> str:
    fix = f"\n  fix: {finding.marked_fix}" if finding.marked_fix else ""
    return f"{finding.where}: error: {finding.marked} [{finding.rule}]{fix}"


def refuse_errors_on(path: str, strategy: Strategy, cluster: Cluster) -> None:
    """Stop at what DeepSpeed would refuse of a file on these GPUs.

    Its batch is set against the GPUs where every one of them reads a batch of its own.

    Raises:
        InputError: every error of the file, with its fix.
    """
    if strategy.world_size == strategy.data_parallel:
        refuse_errors(path, strategy.world_size, cluster.gpus_per_node)


def read_strategy_file(path: Path, options: Mapping[str, Any]) -> StrategyFile:
    """Read a DeepSpeed JSON that decides the strategy; ``options`` say what else was given. Raises
    InputError: unreadable, what DeepSpeed would refuse, or an argument that the file decides."""
    from zerokit.linter.files import load_deepspeed

    document = load_deepspeed(path, strict=False)  # DeepSpeed reads past comments, too
    refuse_errors(str(path))
    settings = settings_beside(options, path, document.value)
    remarks = tuple(
        f"{path}:{problem.location.line}:{problem.location.column}: {problem.message}; fix: {problem.fix} "
        f"[{problem.rule}]"
        for problem in document.problems
    )
    return StrategyFile(path=path, config=document.value, settings=settings, remarks=remarks)


def settings_beside(options: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> DeepSpeedSettings:
    """What DeepSpeed makes of a configuration, with the options that it leaves open. Raises InputError: a
    value of the wrong kind, or an argument that the file decides."""
    refuse_beside_file(options, path, config, open_options(config))
    try:
        settings = from_config(config)
    except FileInputError:
        raise
    except InputError as error:
        raise InputError(f"{path}: {error.marked}") from None
    if settings.optimizer is None and options.get("optimizer"):
        # of an offloaded one Accelerate makes DeepSpeed's own (accelerator.py:2383, 1.15)
        torch_adam = options["optimizer"] == TORCH_ADAMW and settings.optimizer_device == "none"
        settings = with_optimizer(settings, resolve_optimizer(options["optimizer"])[0])
        settings = replace(settings, torch_adam=torch_adam)
    return settings


def one_strategy(request: Request, file: StrategyFile | None = None) -> tuple[Strategy, tuple[Note, ...]]:
    """The file's strategy, or plain values with what was given; and what was assumed. Raises InputError:
    degrees, batch sizes or placements that cannot be."""
    pins, cluster = request.pins, request.cluster
    tensor = pins.tensor_parallel or (file.settings.autotp_size if file else 1)
    pipeline, sequence = pins.pipeline_parallel or 1, pins.sequence_parallel or 1
    if cluster.gpus % (tensor * pipeline * sequence):
        raise InputError(
            f"⟨tp⟩ {tensor} × ⟨pp⟩ {pipeline} × ⟨{pins.sharing_option}⟩ {sequence} does not divide "
            f"⟨gpus⟩ {cluster.gpus}"
        )
    layout = Layout(data=cluster.gpus // (tensor * pipeline * sequence), tensor=tensor, pipeline=pipeline,
                    sequence=sequence)  # fmt: skip
    refuse_layout(layout, request)
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
    precision, why = choose_precision(request.precision, request.cluster)
    micro, steps = batch_of(request, layout.data)
    job = replace(request.job, global_batch=micro * steps * layout.data)
    space = make_space(replace(request, job=job, precision=precision))[0]
    engine = engine_of(space)
    placement, chosen = engine.plain(request, layout)
    strategy = build_strategy(space, layout, placement, checkpointing, micro, steps, chosen)
    refuse_strategy(job, strategy)
    stage: tuple[Note, ...] = ()
    if pins.zero_stage is None and strategy.settings.zero_stage == 0 and not request.job.inference:
        master = "" if precision == "fp32" else ", with fp32 master weights"
        text = (
            f"ZeRO stage 0 of DeepSpeed{master}: ⟨zero⟩ not given; for a script without DeepSpeed, "
            "`zerokit rehearse SCRIPT` says what is required"
        )
        stage = (Note("stage-assumed", text, "default", short="⟨zero⟩ 0"),)
    return strategy, (why, *stage)


def batch_of(request: Request, ranks: int) -> tuple[int, int]:
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
    train = count(file.config, "train_batch_size") or job.global_batch
    steps = count(file.config, "gradient_accumulation_steps") or pins.gradient_accumulation
    micro = count(file.config, "train_micro_batch_size_per_gpu") or pins.micro_batch
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


def left_open(what: str, why: str) -> Note:
    """A note on a value that the file leaves open; in short the value alone."""
    return Note("left-open", f"{what}: the file {why}", short=what)


_SAYS_AUTO = 'says "auto"'
_BUCKETS = {
    "reduce_bucket": "reduce_bucket_size",
    "prefetch_bucket": "stage3_prefetch_bucket_size",
    "persistence": "stage3_param_persistence_threshold",
}
"""Option -> key that a Trainer and Accelerate fill from the hidden size."""
_NO_MEMORY = ("optimizer.params.", "scheduler.", "gradient_clipping", "steps_per_print", "autotuning.")
"""Keys whose value moves neither memory nor time."""


def open_options(config: Mapping[str, Any]) -> frozenset[str]:
    """The options that a DeepSpeed JSON leaves to whoever reads it."""
    zero = _block(config, "zero_optimization")
    found = {option for option, key in _BUCKETS.items() if zero.get(key) == AUTO}
    if open_precisions(config):
        found.add("precision")
    if zero.get("stage") == AUTO:
        found.add("zero")
    for name in ("offload_optimizer", "offload_param"):
        if _block(zero, name).get("device") == AUTO:
            found |= {name, "nvme"}
    if config.get("gradient_accumulation_steps") == AUTO:
        found.add("gradient_accumulation")
    for option, key in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("global_batch", "train_batch_size"),
    ):
        if config.get(key) in (None, AUTO):
            found.add(option)
    if _block(config, "optimizer").get("type") in (None, AUTO):
        found.add("optimizer")
    return frozenset(found)


def with_open_values(
    settings: DeepSpeedSettings, config: Mapping[str, Any], request: Request
) -> tuple[DeepSpeedSettings, tuple[Note, ...]]:
    """The settings with what the file leaves open, batch sizes apart, and a note for each. Raises InputError:
    a precision that the GPU lacks, or that the file turns off."""
    notes: list[Note] = []
    precision, note = _precision(settings.precision, config, request)
    notes += note
    zero = _zero(settings.zero, config, request, notes)
    zero = _with_buckets(zero, config, request, notes)
    if settings.optimizer is None and settings.client_optimizer is None:
        why = "names none, so the script makes it; ⟨optimizer⟩ to change"
        notes.append(left_open("optimizer AdamW", why))
    filled = f"{_SAYS_AUTO}, which nobody fills; DeepSpeed's default"
    notes += (left_open(key, filled) for key in _unfilled(config))
    return replace(settings, precision=precision, zero=zero), tuple(notes)


def batch_note(config: Mapping[str, Any], key: str, value: int) -> tuple[Note, ...]:
    """What to say of a batch size per GPU or an accumulation that no option and no batch decides."""
    says = config.get(key) == AUTO
    if key == "gradient_accumulation_steps":
        if not says:
            return ()
        what, option, argument = "gradient accumulation", "gradient_accumulation", f"--{key}, 1"
    else:
        what, option = "micro-batch", "micro_batch"
        argument = f"--per_device_train_batch_size, {TRAINERS_MICRO_BATCH}"
    why = f'says "auto" (a Trainer\'s {argument} unless given)' if says else "does not say"
    return (left_open(f"{what} {value}", f"{why}; give ⟨{option}⟩"),)


def trainers_micro_batch(train: int | None, ranks: int, steps: int | None) -> int:
    """What a Trainer takes per GPU: its default, or the next size below with which ``train`` can be met.
    ``steps``: of accumulation; None: the script decides them, too."""
    if train is None or train % (ranks * (steps or 1)):
        return TRAINERS_MICRO_BATCH
    share = train // (ranks * (steps or 1))
    if steps is not None:
        return share
    return next(size for size in range(TRAINERS_MICRO_BATCH, 0, -1) if share % size == 0)


def beside_auto(config: Mapping[str, Any], micro: int, steps: int, ranks: int) -> tuple[str, ...]:
    """What to say of a ``train_batch_size`` in numbers where the script fills its parts.

    A Trainer holds it against its own arguments, and ends where it differs (transformers 5.24,
    integrations/deepspeed.py, trainer_config_process).
    """
    train = config.get("train_batch_size")
    parts = {
        "--per_device_train_batch_size": ("train_micro_batch_size_per_gpu", micro, TRAINERS_MICRO_BATCH),
        "--gradient_accumulation_steps": ("gradient_accumulation_steps", steps, 1),
    }
    if not isinstance(train, int) or not any(config.get(key) == AUTO for key, _, _ in parts.values()):
        return ()
    what = f'train_batch_size {train:,} beside "auto": a Trainer refuses the file'
    if micro * steps * ranks != train:
        return (f"{what}, as {micro} per GPU × {steps} accumulation × {ranks} is {micro * steps * ranks:,}",)
    given = [f"{argument} {value}" for argument, (_, value, default) in parts.items() if value != default]
    return (f"{what} unless it is given {' '.join(given)} on {counted(ranks, 'rank')}",) if given else ()


def _block(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    block = config.get(key)
    return block if isinstance(block, Mapping) else {}


def open_precisions(config: Mapping[str, Any]) -> dict[str, bool]:
    """Precision -> whether its block says ``"auto"``, rather than that the file has none, which Accelerate
    adds; empty where the file decides."""
    bf16 = "bfloat16" if config.get("bf16") is None else "bf16"
    values = {
        name: AUTO if config.get(key) == AUTO else _block(config, key).get("enabled")
        for name, key in (("bf16", bf16), ("fp16", "fp16"))
        if config.get(key) is not None
    }
    if True in values.values() or _block(config, "torch_autocast").get("enabled") is True:
        return {}
    return {name: name in values for name in ("bf16", "fp16") if values.get(name, AUTO) == AUTO}


def _precision(decided: str, config: Mapping[str, Any], request: Request) -> tuple[str, tuple[Note, ...]]:
    precisions = open_precisions(config)
    if not precisions:
        return decided, ()
    given = request.precision
    if given != AUTO:
        if given not in precisions and given != "fp32":
            raise InputError(f"⟨precision⟩ {given}: the file of ⟨deepspeed⟩ turns it off; leave it out")
        return choose_precision(given, request.cluster)[0], ()
    autos = [name for name, says in precisions.items() if says]
    if not autos:
        why = "names none (Accelerate's mixed_precision, or a Trainer's --bf16, would set it); "
        return decided, (left_open("precision fp32", f"{why}⟨precision⟩ to change"),)
    best = choose_precision(AUTO, request.cluster)[0]
    if best not in autos and ("fp16" not in autos or request.cluster.on_cpu):
        lacks = "these CPUs lack" if request.cluster.on_cpu else f"{request.cluster.gpu.name} lacks"
        why = f"{_SAYS_AUTO} for {autos[0]}, which {lacks} in hardware"
        return "fp32", (left_open("precision fp32", why),)
    chosen = best if best in autos else "fp16"
    why = (
        f"{_SAYS_AUTO}, which a Trainer's --{chosen} or Accelerate's mixed_precision turns on; a run without "
        "them is in fp32: ⟨precision⟩ fp32"
    )
    return chosen, (left_open(f"precision {chosen}", why),)


def _zero(zero: ZeroSettings, config: Mapping[str, Any], request: Request, notes: list[Note]) -> ZeroSettings:
    """Stage and offload; what to say is added to ``notes``."""
    block, pins = _block(config, "zero_optimization"), request.pins
    if block.get("stage") == AUTO:
        zero = replace(zero, stage=PLUGINS_STAGE if pins.zero_stage is None else pins.zero_stage)
        if pins.zero_stage is None:
            why = (
                f"{_SAYS_AUTO} for the stage (Accelerate's zero_stage, {PLUGINS_STAGE} unless given; "
                "deepspeed.initialize alone runs stage 0); ⟨zero⟩ to change"
            )
            notes.append(left_open(f"ZeRO-{PLUGINS_STAGE}", why))
    for name in ("offload_optimizer", "offload_param"):
        if _block(block, name).get("device") != AUTO:
            continue
        device = getattr(pins, name)
        offload = replace(getattr(zero, name), device=device or "none")
        zero = replace(zero, **{name: offload})
        if device is None:
            why = f"{_SAYS_AUTO} (Accelerate's {name}_device); ⟨{name}⟩ to change"
            notes.append(left_open(f"{name} none", why))
    return zero


def _with_buckets(
    zero: ZeroSettings, config: Mapping[str, Any], request: Request, notes: list[Note]
) -> ZeroSettings:
    """What a Trainer and Accelerate fill from the hidden size; what to say is added to ``notes``.

    transformers 5.23, integrations/deepspeed.py, ``trainer_config_finalize``; accelerate 1.15,
    accelerator.py, ``_prepare_deepspeed``. ``deepspeed.initialize`` takes its defaults.
    """
    block = _block(config, "zero_optimization")
    hidden, fixed = request.shape.hidden, request.pins.sizes()
    values = {
        "reduce_bucket": ("reduce_bucket_size", "reduce_bucket_size", hidden * hidden),
        "prefetch_bucket": ("prefetch_bucket_size", "prefetch_bucket_size", int(0.9 * hidden * hidden)),
        "persistence": ("param_persistence_threshold", "persistence_threshold", 10 * hidden),
    }
    filled: list[tuple[str, str]] = []
    for option, (name, pin, value) in values.items():
        key = _BUCKETS[option]
        if block.get(key) != AUTO or zero.stage < (1 if option == "reduce_bucket" else 3):
            continue
        zero = replace(zero, **{name: fixed.get(pin, value)})
        if pin not in fixed:
            filled.append((f"{key} {value:,}", f"⟨{option}⟩"))
    if filled:
        why = (
            f"{_SAYS_AUTO}, which a Trainer and Accelerate fill from "
            f"the hidden size {hidden:,} (deepspeed.initialize takes its defaults); "
            f"{', '.join(option for _, option in filled)} to change"
        )
        notes.append(left_open(", ".join(text for text, _ in filled), why))
    return zero


def _unfilled(config: Mapping[str, Any]) -> Iterator[str]:
    """Keys with ``"auto"`` that neither a Trainer nor Accelerate fills, for which DeepSpeed has a default."""
    from zerokit.linter.deepspeed.autos import autos, fills

    for path in autos(config):
        key = ".".join(path)
        if not key.startswith(_NO_MEMORY) and not any(
            fills(reader, key) for reader in ("trainer", "accelerate")
        ):
            yield key
