"""``zerokit estimate``: memory and step time of one given configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.errors import FileInputError, InputError, NothingFits


@click.command(
    "estimate",
    short_help="Memory and step time of one given configuration.",
    epilog="Example: zerokit estimate --model llama-3.1-8b --gpus 8 --gpu h200 --deepspeed ds_config.json",
)
@shared_options.shared
@click.option(
    "--deepspeed", "deepspeed", metavar="FILE", help="A ds_config.json, which then decides the strategy."
)
@click.option("--json", "as_json", is_flag=True, help="Print the estimate as JSON on standard output.")
def command(deepspeed: str | None, as_json: bool, **options: Any) -> int:
    """Predict memory and step time of ONE configuration.

    What is not given takes its plain value: ZeRO-0 (or the file's stage), micro-batch 1, no
    accumulation, no parallelism but data, no checkpointing. Ends with exit code 3 where it does not fit.
    """
    from zerokit.cli import show
    from zerokit.domain.unmodelled import BASIS, not_modelled
    from zerokit.memory.saving import notes as saving_notes
    from zerokit.planner import documents
    from zerokit.search.explain import cluster_words
    from zerokit.search.plan import estimate_strategy

    settings = None if deepspeed is None else _settings(Path(deepspeed), options)
    read = shared_options.read({**options, "deepspeed": deepspeed}, single=True)
    request = read.request
    strategy, notes = _strategy(request, settings)
    unmodelled = () if settings is None else not_modelled(settings[0])
    if deepspeed is not None:
        notes = (*_errors_in(deepspeed), *unmodelled, *notes)
    candidate, fitting = estimate_strategy(request, strategy)
    if unmodelled:
        candidate = replace(candidate, memory=replace(candidate.memory, basis=BASIS))
    notes = (*notes, *saving_notes(candidate, request.shape, request.job, request.cluster))
    body = documents.estimate(
        candidate,
        request.cluster,
        fits=fitting if read.vram_named else None,
        assumptions=(*request.assumptions, *notes),
        timed=request.timed,
        on_cpu=request.on_cpu,
    )
    # 3 as `plan` ends where nothing fits; the answer itself stands on standard output all the same
    code = NothingFits.exit_code if body["fits"] is False else 0
    if as_json:
        click.echo(json.dumps(body, indent=1, allow_nan=False))
        return code
    capacity = request.cluster.gpu.driver_vram_bytes if read.vram_named else None
    title = f"{read.model_name} on {cluster_words(request.cluster)}"
    click.echo(show.estimate(body, title, capacity, documents.degrees(strategy)))
    return code


def _errors_in(path: str) -> tuple[str, ...]:
    """What DeepSpeed would refuse or not understand of a file whose other keys are estimated."""
    from zerokit.linter.deepspeed.file import Context
    from zerokit.linter.files import check_files

    (checked,) = check_files([path], Context(), kind="deepspeed")
    errors = [finding for finding in checked.findings if finding.severity == "error"]
    if not errors:
        return ()
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    first = errors[0]
    return (
        f"{path}:{first.place.line}: {first.message}{more} (`zerokit check {path}`); the rest is estimated",
    )


def _settings(path: Path, options: dict[str, Any]) -> Any:
    """The settings of a DeepSpeed JSON.

    Raises:
        InputError: unreadable, a bad value, or an option that the file decides.
    """
    from zerokit.cli.effects import refuse_beside_file
    from zerokit.domain.deepspeed_settings import from_config
    from zerokit.strictload import load_json

    document = load_json(path, strict=False)  # DeepSpeed reads past comments, too
    if not isinstance(document.value, dict):
        raise document.error((), "expected a JSON object: a DeepSpeed configuration")
    refuse_beside_file(options, document.value)
    try:
        settings = from_config(document.value)
    except FileInputError:
        raise
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    optimizer = settings.optimizer or options.get("optimizer")
    return document.value, replace(settings, optimizer=optimizer)


def _strategy(request: Any, read: Any) -> tuple[Any, tuple[str, ...]]:
    """One strategy: the file's, or plain values with the options."""
    from zerokit.domain.strategy import Strategy
    from zerokit.search.plan import choose_precision, make_space
    from zerokit.search.search import build_strategy
    from zerokit.search.space import Knobs, Layout, Placement, layout_violation

    pins, cluster = request.pins, request.cluster
    raw, settings = read if read is not None else ({}, None)
    tensor = pins.tensor_parallel or (settings.autotp_size if settings else 1)
    pipeline, sequence = pins.pipeline_parallel or 1, pins.sequence_parallel or 1
    if cluster.gpus % (tensor * pipeline * sequence):
        raise InputError(
            f"--tp {tensor} × --pp {pipeline} × --sp {sequence} does not divide --gpus {cluster.gpus}"
        )
    layout = Layout(data=cluster.gpus // (tensor * pipeline * sequence), tensor=tensor, pipeline=pipeline,
                    sequence=sequence)  # fmt: skip
    refused = layout_violation(layout, request.shape, request.job, cluster, pins)
    if refused is not None:
        raise InputError(f"{refused.message}; {refused.fix}")
    checkpointing = pins.checkpointing or "none"
    if settings is not None:
        settings, notes = _with_batch(settings, raw, layout.data, pins, request.job)
        if tensor != settings.autotp_size:
            settings = replace(settings, autotp_size=tensor)
        strategy = Strategy(
            settings=settings,
            data_parallel=layout.data,
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            sequence_parallel=sequence,
            checkpointing=checkpointing,
        )
        return strategy, notes
    precision, why = choose_precision(request.precision, cluster, request.on_cpu)
    micro, steps = _batch(request, layout.data)
    placement = Placement(
        stage=pins.zero_stage or 0,
        optimizer=pins.offload_optimizer or "none",
        parameters=pins.offload_param or "none",
    )
    chosen = Knobs(overlap_comm=pins.overlap_comm, **pins.sizes())
    job = replace(request.job, global_batch=micro * steps * layout.data)
    space = make_space(replace(request, job=job, precision=precision))[0]
    strategy = build_strategy(space, layout, placement, checkpointing, micro, steps, chosen)
    return strategy, (why,)


def _batch(request: Any, ranks: int) -> tuple[int, int]:
    """Micro-batch and accumulation that meet what is given."""
    pins, batch = request.pins, request.job.global_batch
    micro, steps = pins.micro_batch, pins.gradient_accumulation
    if batch is None:
        return micro or 1, steps or 1
    if batch % ranks:
        raise InputError(f"--global-batch {batch} is not a multiple of {ranks} data-parallel ranks")
    each = batch // ranks
    if micro is None:
        micro = each // (steps or each)  # not given: one sequence at a time
        micro = micro or 1
    if each % micro or (steps is not None and micro * steps != each):
        raise InputError(
            f"--global-batch {batch} is not micro-batch {micro} × accumulation × {ranks} data-parallel ranks"
        )
    return micro, each // micro


def _with_batch(
    settings: Any, raw: dict[str, Any], ranks: int, pins: Any, job: Any
) -> tuple[Any, tuple[str, ...]]:
    """The file's batch sizes, completed as DeepSpeed does (runtime/config.py, _set_batch_related)."""

    def number(key: str) -> int | None:
        value = raw.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    train, steps = number("train_batch_size"), number("gradient_accumulation_steps")
    micro = number("train_micro_batch_size_per_gpu") or pins.micro_batch
    train = train or (job.global_batch if micro is None or steps is None else None)
    notes = []
    if micro is None and train is not None:
        micro = max(1, train // ranks // (steps or 1))
    if micro is None:
        micro = 1
        notes.append("micro-batch 1: the file does not say; give --micro-batch")
    if steps is None:
        steps = max(1, train // micro // ranks) if train is not None else 1
    return replace(settings, micro_batch=micro, gradient_accumulation=steps), tuple(notes)
