"""From a request to a plan: precision, global batch, search, reasons, and what to do when nothing fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from zerokit.domain.hardware import DEFAULT_MARGIN, Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.errors import InputError, NothingFits, ZerokitError
from zerokit.memory.closed_form import trainable_parameters
from zerokit.memory.saving import notes as saving_notes
from zerokit.memory.saving import saving, with_saving
from zerokit.notes import Note, with_id
from zerokit.rules import first_violation
from zerokit.search import explain as advice
from zerokit.search import remedies
from zerokit.search.deepspeed_space import refuse_placement
from zerokit.search.engine import ANY_ENGINE, DIVIDING
from zerokit.search.engines import engine_of
from zerokit.search.explain import (
    NOISE,
    as_fast,
    assumed_host,
    close_call,
    note_on_choice,
    note_on_cores,
    simplest,
    with_range,
)
from zerokit.search.remedies import REMEDIES, Gain, fastest_with_fewer, gains, on_loss
from zerokit.search.search import BATCH_REASON, HOST_REASON, SearchResult, fits, search
from zerokit.search.space import (
    Layout,
    Pins,
    Request,
    Space,
    divisors,
    refuse_layout,
)
from zerokit.timing.step_time import TimeModel
from zerokit.units import counted, format_gib
from zerokit.values import frozen_dataclass, replace

_TARGET_TOKENS = 262_144
"""Of a step, where no global batch is given: a convention, which the answer states."""
_MOST_SEQUENCES_PER_GPU = 32
_HALFWAY = math.sqrt(2)
"""A power of two is the nearest to a number, by ratio, up to this times itself."""


def _data_ranks(of: Request | Space) -> int:
    """The data-parallel ranks that the fixed degrees leave."""
    pins = of.pins
    fixed = (pins.tensor_parallel or 1) * (pins.pipeline_parallel or 1) * (pins.sequence_parallel or 1)
    return max(1, of.cluster.gpus // fixed)


def choose_global_batch(request: Request) -> tuple[int, Note]:
    """Sequences per optimizer step and why. Raises InputError: fixed sizes that no division of the GPUs
    meets."""
    job, pins, gpus = request.job, request.pins, request.cluster.gpus
    if job.global_batch is not None:
        text = f"global batch {job.global_batch}: given"
        return job.global_batch, Note("global-batch-given", text, "given")
    ranks = _data_ranks(request)
    if job.inference:
        micro = pins.micro_batch or 1
        text = f"{counted(micro, 'sequence')} a GPU at a time, of {job.seq_len} tokens in all"
        return micro * ranks, Note("global-batch", text)
    if pins.micro_batch is not None or pins.gradient_accumulation is not None:
        micro, steps = pins.micro_batch or 1, pins.gradient_accumulation or 1
        total = micro * steps * ranks
        text = (
            f"global batch {total}: micro-batch {micro} × accumulation {steps} × {ranks} data-parallel ranks"
        )
        return total, Note("global-batch", text)
    if request.cluster.on_cpu:
        text = f"global batch {2 * ranks}, two sequences per CPU rank: ⟨global_batch⟩ not given"
        return 2 * ranks, Note("global-batch", text, "default", short=f"⟨global_batch⟩ {2 * ranks}")
    per_gpu = _TARGET_TOKENS / job.seq_len / gpus
    sequences = job.defaults.least_rows
    while sequences * 2 <= min(per_gpu * _HALFWAY, _MOST_SEQUENCES_PER_GPU):
        sequences *= 2
    total = sequences * gpus
    each = "each of " if gpus > 1 else ""
    text = (
        f"global batch {counted(total, 'sequence')}, {total * job.seq_len:,} tokens a step: "
        f"⟨global_batch⟩ not given; {sequences} for {each}{counted(gpus, 'GPU')}, the power of two "
        f"(at most {_MOST_SEQUENCES_PER_GPU}) that comes nearest to {_TARGET_TOKENS:,} tokens a step"
    )
    return total, Note("global-batch", text, "default", short=f"⟨global_batch⟩ {total:,}")


def refuse_micro_batch(batch: int, pins: Pins, ranks: int = 1) -> None:
    """Refuse a fixed micro-batch that does not divide the global batch; ``ranks``: data-parallel ones; 1: not
    known. Raises InputError: with global batches that it divides."""
    if pins.micro_batch and batch % pins.micro_batch:
        each = f" on each of {ranks} data-parallel ranks" if ranks > 1 else ""
        raise InputError(
            f"⟨micro_batch⟩ {pins.micro_batch}{each} does not divide ⟨global_batch⟩ {batch}; "
            f"{nearest_batches(batch, ranks, pins)}"
        )


def nearest_batches(batch: int, ranks: int, pins: Pins) -> str:
    """The global batches next to one that the fixed sizes leave on so many data-parallel ranks."""
    step = ranks * (pins.micro_batch or 1) * (pins.gradient_accumulation or 1)
    if pins.micro_batch and pins.gradient_accumulation:
        return f"use ⟨global_batch⟩ {step}"
    lower = batch // step * step or step
    return f"use ⟨global_batch⟩ {lower} or {lower + step}"


def check_batch(result: SearchResult, request: Request) -> None:
    """Refuse a fixed global batch when it alone is in the way. Raises InputError: with the batches next to it
    that are possible."""
    if result.nearest is not None or BATCH_REASON not in result.rejected:
        return
    batch, pins, least = request.job.global_batch, request.pins, request.job.defaults.least_rows
    if batch is None:
        return
    if least > 1 and pins.micro_batch is None:
        pins = replace(pins, micro_batch=least)
    ranks = _data_ranks(request)
    sequences = (pins.micro_batch or 1) * (pins.gradient_accumulation or 1)
    step = ranks * sequences
    if pins.micro_batch and pins.gradient_accumulation:
        ways = "" if batch % sequences or ranks % (batch // sequences) else _divided_by_script(request)
        raise InputError(
            f"⟨micro_batch⟩ {pins.micro_batch} × ⟨gradient_accumulation⟩ {pins.gradient_accumulation} × "
            f"{counted(ranks, 'data-parallel rank')} are {counted(step, 'sequence')} a step, not "
            f"⟨global_batch⟩ {batch}; leave one of the three out{ways}"
        )
    raise InputError(
        f"⟨global_batch⟩ {batch} cannot be divided evenly over {counted(ranks, 'data-parallel rank')} with "
        f"these options; {nearest_batches(batch, ranks, pins)}{_divided_by_script(request)}"
    )


def _divided_by_script(request: Request) -> str:
    by_script = (one for one in REMEDIES if one.told == "script" and one.change(request) is not None)
    ways = [f"{one.title.partition(' ')[0]} auto" for one in by_script]
    return (
        f", or {' or '.join(ways)} if the script gives the ranks of one group the same batch" if ways else ""
    )


WHAT_WOULD_FIT = "What would make it fit:"
"""Heads the changes after which something fits, in the message of what does not."""


@frozen_dataclass(slots=False)
class Plan:
    """The choice and what it was chosen from.

    What would be faster takes more searches than the choice: it is looked for where it is shown.

    Attributes:
        cluster: what the choice uses: less than there is where fewer GPUs are faster.
        gains_told: what the changes of the job that are told somewhere would gain (:class:`Remedy`).
        with_fewer: a sentence: what fewer GPUs would gain, where all of them were asked for.
        advice_beside: sentences that the figures support, beside the gains that are told first.
        left_idle: where the choice uses fewer GPUs than there are, that it does; begins an assumption too.
    """

    chosen: Candidate
    alternatives: tuple[Candidate, ...]
    rejected: Mapping[str, int]
    candidates: int
    seconds: float
    precision: str
    global_batch: int
    cluster: Cluster
    assumptions: tuple[Note, ...]
    gains_told: Callable[[tuple[str, ...]], tuple[Gain, ...]] = lambda _: ()
    with_fewer: Callable[[], tuple[str, ...]] = tuple
    advice_beside: Callable[[tuple[Gain, ...]], tuple[Note, ...]] = lambda _: ()
    left_idle: str = ""

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """What the changes that keep the job's results would gain, most first."""
        return self.gains_told(("first",))

    @cached_property
    def faster_with(self) -> tuple[str, ...]:
        """Sentences: what would be faster and what it takes."""
        others = self.gains_told(("explained", "size", "script", "pipeline"))
        told = sorted((*self.gains, *others), key=lambda gain: -gain.share)
        return (*(gain.words for gain in told), *self.with_fewer())

    @cached_property
    def advice(self) -> tuple[Note, ...]:
        """Sentences that the figures support."""
        return self.advice_beside(self.gains)


def choose_precision(requested: str, cluster: Cluster) -> tuple[str, Note]:
    """The training precision and why. Raises InputError: the GPU cannot do what was asked."""
    gpu = cluster.gpu
    if requested == "auto":
        if cluster.on_cpu and gpu.supports("bf16"):
            return "bf16", Note("precision", "precision bf16: these CPUs have it in hardware")
        if cluster.on_cpu:
            return "fp32", Note(
                "precision",
                "precision fp32: these CPUs have no bf16 in hardware, where it takes many times as "
                "long, and DeepSpeed refuses fp16 on CPU ranks",
            )
        if gpu.supports("bf16"):
            text = f"precision bf16: {gpu.name} has it in hardware, and it needs no loss scaling"
            return "bf16", Note("precision", text, "given")
        return "fp16", Note("precision", f"precision fp16: {gpu.name} has no bf16 in hardware")
    if requested == "fp16" and cluster.on_cpu:
        raise InputError("⟨precision⟩ fp16: DeepSpeed refuses fp16 on CPU ranks; use bf16 or fp32")
    if requested == "bf16" and not gpu.supports("bf16") and not cluster.on_cpu:
        raise InputError(f"⟨precision⟩ bf16: {gpu.name} has no bf16 in hardware; use fp16")
    return requested, Note("precision-given", f"precision {requested}: given", "given")


Keep = Callable[[Sequence[Candidate]], Sequence[Candidate]]
"""Which of the strategies that fit, fastest first, may be chosen."""


def make_plan(request: Request, top: int = 5, keep: Keep = tuple) -> Plan:
    """The fastest strategy that fits, with alternatives and reasons. Raises InputError: pins that contradict
    each other, the model or the hardware. Raises NothingFits: nothing legal fits; names the nearest changes
    that would."""
    if request.pins.engine == ANY_ENGINE:
        return _of_any_engine(request, top, keep)
    space, notes = make_space(request)
    check_pins(space)
    notes = (*notes, *request.not_shared)
    result = search(space, top=max(2, top), wants_nearest=True)
    if not result.ranked and space.cluster.margin == DEFAULT_MARGIN:
        space = replace(space, cluster=replace(space.cluster, margin=0.0))
        result = search(space, top=max(2, top), wants_nearest=True)
    if not result.ranked:
        check_batch(result, request)
        if result.unknown is not None and result.nearest is None:
            raise result.unknown[1]
        raise NothingFits(_explain(request, result))
    fewer = fastest_with_fewer(space, result.ranked[0]) if request.timed else None
    idle = ""
    if fewer is not None and not request.all_gpus:
        fastest = search(fewer, top=max(2, top))
        idle = remedies.left_idle(fastest.ranked[0], result.ranked[0])
        notes = (Note("left-idle", f"{idle}; {remedies.why_idle(result.ranked[0])}"), *notes)
        result, space, request = fastest, fewer, replace(request, cluster=fewer.cluster)
    chosen, *others = keep(_simplest_first(space, result.ranked, request))
    surer = advice.surely_fitting(space, chosen, request)
    shape, job, cluster = space.shape, space.job, space.cluster
    exact = space.memory.detailed()(job, chosen.strategy, cluster)
    chosen = with_saving(replace(chosen, memory=exact), shape, job, cluster)
    others = [with_saving(candidate, shape, job, cluster) for candidate in others]
    if request.timed:
        chosen, *others = (with_range(ranked, space.timing) for ranked in (chosen, *others))
    surer += advice.narrow(chosen, request)
    why = advice.why(chosen, others, cluster)
    assumptions = (
        *request.assumptions, *notes, *chosen.memory.assumptions,
        *note_on_choice(chosen, cluster, result), *_left_out(result),
        *(() if cluster.on_cpu else note_on_cores(chosen, cluster)),
        *saving_notes(chosen, shape, job, cluster, decides=True),
    )  # fmt: skip
    return Plan(
        chosen=replace(chosen, why=why),
        alternatives=tuple(
            replace(candidate, why=advice.runner_up(candidate, chosen, cluster))
            for candidate in others[: max(0, top - 1)]
        ),
        rejected=result.rejected,
        candidates=result.candidates,
        seconds=result.seconds,
        precision=space.precision,
        global_batch=space.global_batch,
        cluster=cluster,
        left_idle=idle,
        assumptions=assumptions,
        gains_told=lambda told: gains(request, space, chosen, chosen_within, told),
        with_fewer=lambda: _with_fewer(fewer if request.all_gpus else None, chosen),
        advice_beside=lambda told: (
            *surer,
            *advice.advise(space, chosen, on_loss(space, chosen, told)),
            *(close_call(chosen, others, space.timing) if request.timed else ()),
        ),
    )


def _of_any_engine(request: Request, top: int, keep: Keep) -> Plan:
    """The fastest of all engines' plans; of those as fast, the user's own, or DeepSpeed's."""
    plans: list[Plan] = []
    refused: dict[str, ZerokitError] = {}
    for name in sorted(DIVIDING, key=lambda name: name != request.own_engine):
        try:
            plans.append(make_plan(replace(request, pins=replace(request.pins, engine=name)), top, keep))
        except (InputError, NothingFits) as error:
            refused[name] = error
    if not plans:
        raise next(iter(refused.values()))
    first = min(plans, key=lambda plan: plan.chosen.time.step_seconds * (1 + NOISE * (plan is not plans[0])))
    others = [one for plan in plans for one in (plan.chosen, *plan.alternatives) if one is not first.chosen]
    others.sort(key=lambda one: one.time.step_seconds)
    said = (replace(one, why=advice.runner_up(one, first.chosen, request.cluster)) for one in others)
    told = [
        Note("engine-left-out", f"⟨engine⟩ {name} left out: {why.marked}") for name, why in refused.items()
    ]
    why = advice.why(first.chosen, others, request.cluster)
    return replace(
        first,
        chosen=replace(first.chosen, why=why),
        alternatives=tuple(said)[: max(0, top - 1)],
        assumptions=(*first.assumptions, *told),
        candidates=sum(plan.candidates for plan in plans),
        seconds=sum(plan.seconds for plan in plans),
    )


def unlike(as_it_is: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Which of the user's own values to keep: all of them first, then all but one, and so on."""
    for count in range(len(as_it_is), 0, -1):
        yield from itertools.combinations(as_it_is, count)


def _simplest_first(space: Space, ranked: Sequence[Candidate], request: Request) -> tuple[Candidate, ...]:
    """Fastest first, but for the one that changes least of what the user runs, and the simplest, of those
    that are as fast as the fastest."""
    if not request.timed:
        return tuple(ranked)
    fastest = ranked[0]
    for names in unlike(request.as_it_is):
        pins = replace(space.pins, **{name: request.as_it_is[name] for name in names})
        alike = as_fast(replace(space, pins=pins), fastest)
        if alike is not None:
            space, fastest = replace(space, pins=pins), alike
            break
    first = simplest(space, fastest)
    return (first, *(candidate for candidate in ranked if candidate.strategy != first.strategy))


def make_space(request: Request) -> tuple[Space, tuple[Note, ...]]:
    """The search space of a request, and what was decided on the way."""
    precision, why_precision = choose_precision(request.precision, request.cluster)
    batch, why_batch = choose_global_batch(request)
    job = replace(request.job, global_batch=batch)
    space = Space(
        shape=request.shape,
        job=job,
        cluster=request.cluster,
        pins=request.pins,
        precision=precision,
        global_batch=batch,
        memory=request.memory,
        timing=time_model(request, job),
    )
    return space, (why_precision, why_batch)


def time_model(request: Request, job: Job) -> TimeModel:
    """The time model of a request."""
    return TimeModel(
        request.shape, job, request.cluster, request.constants, request.calibration,
        trainable_parameters(request.shape, job),
    )  # fmt: skip


def estimate_strategy(request: Request, strategy: Strategy) -> tuple[Candidate, bool]:
    """Memory and time of one given strategy, and whether it fits what is known of the hardware. Raises
    InputError: the strategy is not legal."""
    violation = first_violation(strategy, key_value_heads=request.shape.kv_heads)
    if violation is not None and (violation.rule.severity == "error" or violation.rule.without_effect):
        key = "" if violation.rule.option_fix else f"{violation.key}: "
        raise InputError(f"{key}{violation.message}; {violation.option_fix}")
    job = replace(request.job, global_batch=strategy.global_batch)
    memory = request.memory.detailed()(job, strategy, request.cluster)
    timing = time_model(request, job)
    time = timing.with_retries(timing.estimate(strategy), strategy, memory)
    host_saving = saving(request.shape, job, strategy, request.cluster)
    candidate = Candidate(strategy=strategy, memory=memory, time=time, saving=host_saving)
    candidate = with_range(candidate, timing) if request.timed else candidate
    reason = fits(memory, request.cluster)
    assumed = reason == HOST_REASON and request.cluster.host_ram_bytes is None
    return candidate, reason is None or assumed


def check_pins(space: Space) -> None:
    """Refuse fixed values that cannot be, with the option to change. Raises InputError: names the option."""
    pins, cluster, batch = space.pins, space.cluster, space.global_batch
    shared = f"⟨{pins.sharing_option}⟩"
    pins.refuse_sharing()
    refuse_placement(space.job, pins.zero_stage, pins.offload_optimizer)
    for name, degree in (("⟨tp⟩", pins.tensor_parallel), ("⟨pp⟩", pins.pipeline_parallel),
                         (shared, pins.sequence_parallel)):  # fmt: skip
        if degree is not None and cluster.gpus % degree:
            raise InputError(f"{name} {degree} does not divide {counted(cluster.gpus, 'GPU')}; use one of "
                             f"{', '.join(map(str, divisors(cluster.gpus)[:12]))}")  # fmt: skip
    tensor, pipeline = pins.tensor_parallel or 1, pins.pipeline_parallel or 1
    sequence = pins.sequence_parallel or 1
    if cluster.gpus % (tensor * pipeline * sequence):
        raise InputError(
            f"⟨tp⟩ {tensor} × ⟨pp⟩ {pipeline} × {shared} {sequence} does not divide "
            f"{counted(cluster.gpus, 'GPU')}"
        )
    data = cluster.gpus // (tensor * pipeline * sequence)
    layout = Layout(data=data, tensor=tensor, pipeline=pipeline, sequence=sequence)
    engine_of(space).check(space, layout)
    refuse_layout(layout, space)
    refuse_micro_batch(batch, pins, _data_ranks(space))
    if pins.tensor_parallel is None and pins.sequence_parallel is None and pins.pipeline_parallel is None:
        return
    if batch % layout.data and None not in (pins.tensor_parallel, pins.sequence_parallel):
        raise InputError(
            f"⟨global_batch⟩ {batch} is not a multiple of the {layout.data} data-parallel ranks that ⟨tp⟩, "
            f"⟨pp⟩ and {shared} leave; {nearest_batches(batch, layout.data, pins)}"
        )


def _left_out(result: SearchResult) -> tuple[Note, ...]:
    """That strategies which may be faster were not compared, because what they require is not known."""
    if result.unknown is None:
        return ()
    strategy, why = result.unknown
    text = f"left out, because their memory is not known: {advice.strategy_words(strategy)} and the like; "
    return (Note("left-out", text + why.marked),)


def _with_fewer(fewer: Space | None, chosen: Candidate) -> tuple[str, ...]:
    """What fewer GPUs would gain; ``fewer``: None where they gain nothing, or were not left out."""
    return () if fewer is None else (remedies.would_be_faster(search(fewer, top=1).ranked[0], chosen),)


def _explain(request: Request, result: SearchResult) -> str:
    """Why nothing fits, and the nearest changes that would."""
    from zerokit.search.nearest import closest, fixed_options, larger_gpus, nearest_changes

    lines = [f"nothing fits {advice.cluster_words(request.cluster)}"]
    nearest = closest(request, result.nearest, best_plan)
    if nearest is not None:
        lines[0] += ": " + advice.lack_words(nearest, request.cluster)
    elif result.least_states_bytes:  # before what DeepSpeed refuses, which nobody need have asked for
        fixed = " ".join(fixed_options(request))
        lines[0] += f": {f'with {fixed} ' if fixed else ''}the model states alone require at least "
        lines[0] += f"{format_gib(result.least_states_bytes, 1)} per GPU"
    elif result.rejected:
        lines[0] += f": {next(iter(result.rejected))}"
    if nearest is not None:
        lines += with_id(nearest.memory.assumptions, "loaded-whole", "not-packed")
    lines += (*with_id(request.assumptions, "positions-exceeded"), *request.not_shared)
    changes = nearest_changes(request.for_remarks(), best_plan) or larger_gpus(nearest, request)
    if request.cluster.on_cpu:  # on a laptop or a login node, most likely meant for other machines
        lines[0] += " (these are CPU ranks; to plan for GPUs name them: ⟨gpus⟩ N ⟨gpu⟩ NAME)"
    elif request.cluster.gpu_assumed:
        lines[0] += " (no GPU was named and none was found here: name yours, ⟨gpus⟩ N ⟨gpu⟩ NAME)"
    limit = request.cluster.host_limit_bytes
    is_short = nearest is not None and limit is not None and nearest.memory.host_bytes_per_node > limit
    if request.cluster.host_ram_bytes is None and (is_short or HOST_REASON in result.rejected):
        lines.append(assumed_host(request.cluster))
    lines += _left_out(result)
    if changes:
        lines.append(WHAT_WOULD_FIT)
        lines += [f"  - {change}" for change in changes]
    return "\n".join(lines)


def _checked_space(request: Request) -> Space:
    space, _ = make_space(request)
    check_pins(space)
    return space


def chosen_within(request: Request, limit_seconds: float) -> Candidate | None:
    """What :func:`make_plan` chooses on all GPUs, if it steps within so many seconds; None: nothing does, or
    the request cannot be."""
    try:
        space = _checked_space(request)
        ranked = search(space, top=1, limit_seconds=limit_seconds).ranked
    except InputError:
        return None
    if not ranked:
        return None
    chosen = simplest(space, ranked[0])
    return chosen if chosen.time.step_seconds <= limit_seconds else None


def best_plan(request: Request) -> Candidate | None:
    """The fastest plan of a request, or None where nothing fits or the request cannot be."""
    try:
        space = _checked_space(request)
        ranked = search(space, top=1).ranked
    except InputError:
        return None
    return _simplest_first(space, ranked, request)[0] if ranked else None
