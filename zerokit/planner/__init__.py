"""The planner: from arguments to a plan, an estimate, or the fewest GPUs. What :mod:`zerokit.api` offers.

Arguments come as the command line gives them, by name (:mod:`zerokit.planner.options`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.errors import InputError
from zerokit.fields import first

if TYPE_CHECKING:
    from zerokit.domain.strategy import Candidate
    from zerokit.planner.documents import Estimate
    from zerokit.planner.memory_source import Say
    from zerokit.planner.plan_result import PlanResult
    from zerokit.planner.size_result import SizeResult
    from zerokit.trainer_files.reading import TrainerFile


__all__ = ["estimate", "plan", "plan_into", "plan_recipe_into", "size"]


@contextmanager
def without_collecting() -> Iterator[None]:
    """What a plan imports and makes is kept, and looking through it for garbage takes a sixth of its time."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


@contextmanager
def _said_by_key(file: TrainerFile | None, typed: Mapping[str, Any]) -> Iterator[None]:
    """Words a refusal of a value that the file gives, and nobody typed, with the file's key in place of the
    argument."""
    try:
        yield
    except InputError as error:
        name = first(error.marked) or ""
        if file is not None and name in file.keys and not typed.get(name):
            error.reword(f"{file.path}: {error.marked.replace(f'⟨{name}⟩', file.keys[name])}")
        raise


@without_collecting()
def plan(
    options: Mapping[str, Any],
    *,
    file: TrainerFile | None = None,
    against: str | Path | None = None,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    top: int = 5,
    say: Say | None = None,
) -> PlanResult:
    """Choose the fastest strategy that fits, and write its files where ``out`` names a folder.

    Args:
        file: a trainer's own, whose job is planned; the plan is compared with what it says.
        against: another configuration to compare it with.

    Raises:
        InputError: an argument that cannot be; names it and the fix.
        NothingFits: names the nearest changes that would fit.
    """
    from zerokit.notes import Note, notes_of
    from zerokit.planner.effects import unread
    from zerokit.planner.memory_source import silent, trace_command
    from zerokit.planner.plan_result import PlanResult, check_folder
    from zerokit.planner.request import resolve
    from zerokit.search.plan import make_plan, make_space
    from zerokit.values import replace

    if out is not None:
        check_folder(Path(out))
    requested, before = options, None
    if recipe is not None:
        from zerokit.planner.recipes import merged, script_before

        requested = merged(recipe, options, overrides)
        before = script_before(recipe, overrides, options, requested)
    said = requested  # by words and recipe, before a trainer's file
    with _said_by_key(file, said):
        if file is not None:
            from zerokit.planner.trainer_file import job_options, kept_of, notes_on, searched_values

            requested = job_options(file, requested)
            if "fsdp" in file.engine and not requested.get("engine"):
                requested["engine"] = "auto"
        resolved = resolve(requested, say=say or silent)
    request = resolved.request
    if file is not None:
        own = "fsdp2" if "fsdp" in file.engine else "deepspeed"
        request = replace(request, as_it_is=searched_values(file, said), own_engine=own)
    planned = make_plan(request, top=top)
    if file is not None and not file.engine and not said.get("engine"):
        chosen = planned.chosen
        settings, adapters = chosen.strategy.settings, request.job.method != "full"
        # states of adapters are small: what divides them alone is worth no engine
        divides = settings.divides_gradients if adapters else settings.divides_states
        if not divides and not settings.offloads:
            plain = _without_engine(said, chosen, file=file, against=against, top=top, say=say)
            if plain is not None:
                return plain if out is None else replace(plain, files=plain.write(out, say))
    notes = notes_of("unread", unread(requested, [planned.chosen.strategy]))
    if file is not None:
        notes = (*notes_on(file), *kept_of(file, said), *notes)
    if before is not None:
        notes = (Note("not-rehearsed", before.note), *notes)
    tracing = trace_command(resolved.options, planned.chosen.strategy)
    noted = tuple(note.with_command(tracing) for note in (*planned.assumptions, *notes))
    planned = replace(planned, assumptions=noted)
    result = PlanResult(
        request=resolved.options,
        plan=planned,
        job=make_space(request)[0].job,
        cluster=planned.cluster,
        model_name=(before.model if before is not None else "") or resolved.model_name,
        parameters=request.shape.parameters,
        script_words=before.words if before is not None else (),
        trainer_file=file,
        _below=page_below,
    )
    if against is not None or file is not None:
        from zerokit.planner.against import compared
        from zerokit.planner.trainer_file import notes_on

        beside = compared(against, file, said, requested, result.chosen, result.model_name, say)
        left = () if beside is None or against is None else notes_on(beside.theirs.trainer_file)
        planned = replace(planned, assumptions=(*left, *planned.assumptions))
        result = replace(result, plan=planned, against=beside)
    return result if out is None else replace(result, files=result.write(out, say))


def _without_engine(
    options: Mapping[str, Any], dividing: Candidate, **plan_arguments: Any
) -> PlanResult | None:
    """The plan of a trainer's file that has no engine, where one would divide nothing that counts; None:
    it is not modelled, does not fit, or is slower."""
    from zerokit.errors import NothingFits
    from zerokit.search.explain import NOISE

    try:
        plain = plan({**options, "engine": "ddp"}, **plan_arguments)
    except (InputError, NothingFits):
        return None
    slower = plain.plan.chosen.time.step_seconds > dividing.time.step_seconds * (1 + NOISE)
    return None if slower else plain


def plan_into(options: Mapping[str, Any], folder: Path) -> None:
    """Plan what a plan's file asks for, and write it into a folder. Raises InputError, NothingFits: as for
    :func:`plan`."""
    from zerokit.planner.options import normalized

    plan(normalized(options), out=folder, top=1)


def page_below(result: PlanResult) -> str:
    """A plan's page, in a frame that a notebook opens."""
    from zerokit.planner.page import framed

    return framed(result)


def plan_recipe_into(name: str, overrides: Sequence[str], folder: Path) -> None:
    """Plan a recipe, ``key=value`` changed in it, and write the plan into a folder. Raises InputError: there
    is no such recipe, or nothing fits."""
    from zerokit.errors import InputError, NothingFits

    try:
        plan({}, recipe=name, overrides=overrides, out=folder)
    except (InputError, NothingFits) as error:
        raise InputError(f"⟨recipe⟩ {name}: {error.marked}") from None


@without_collecting()
def estimate(
    options: Mapping[str, Any],
    *,
    deepspeed: str | Path | None = None,
    accelerate: str | Path | None = None,
    file: TrainerFile | None = None,
    traces: bool = True,
    say: Say | None = None,
) -> Estimate:
    """Predict memory and step time of one strategy: that of the file ``deepspeed`` or ``accelerate``, of a
    trainer's own ``file``, or of the options. ``traces``: a model is traced where no trace is at hand. Raises
    InputError: an argument that cannot be, or a file that cannot be read."""
    from zerokit.domain.unmodelled import BASIS, moves_memory, not_modelled, unmodelled_keys
    from zerokit.errors import about
    from zerokit.linter.deepspeed.tables import has_key
    from zerokit.memory.saving import notes as saving_notes
    from zerokit.notes import notes_of
    from zerokit.planner.accelerate_file import Fsdp2File, fsdp2_strategy
    from zerokit.planner.documents import Estimate, PlannedStrategy
    from zerokit.planner.memory_source import silent
    from zerokit.planner.one_strategy import one_strategy, refuse_errors_on
    from zerokit.planner.request import refuse_idle_dtype, resolve
    from zerokit.planner.trainer_file import given_strategy, notes_on
    from zerokit.search.explain import note_on_estimate, unsure_near_limit
    from zerokit.search.nearest import nearest_to
    from zerokit.search.plan import best_plan, estimate_strategy
    from zerokit.values import replace

    with _said_by_key(file, options):
        field, given, options = given_strategy(options, deepspeed=deepspeed, accelerate=accelerate, file=file)
        resolved = resolve(options, single=True, file=given is not None, say=say or silent)
    request = resolved.request
    if not traces:
        request = replace(request, memory=request.memory.untraced())
    config_file = None if isinstance(given, Fsdp2File) else given
    if given is not None:
        refuse_idle_dtype(request.pins, request.job, "fsdp2" if config_file is None else "deepspeed")
    strategy, notes = (
        fsdp2_strategy(request, given) if isinstance(given, Fsdp2File) else one_strategy(request, config_file)
    )
    unmodelled = {} if config_file is None else unmodelled_keys(config_file.config, has_key)
    if config_file is not None:
        of_yaml = accelerate if file is None else file.path
        if of_yaml is None or config_file.path != Path(of_yaml):
            with about(field):
                refuse_errors_on(str(config_file.path), strategy, request.cluster)
        notes = (
            *notes_of("file-remark", config_file.remarks),
            *notes_of("not-modelled", not_modelled(unmodelled)),
            *notes,
        )
    candidate, fitting = estimate_strategy(request, strategy)
    if unmodelled:
        candidate = replace(candidate, memory=replace(candidate.memory, basis=BASIS))
    notes = (*notes, *note_on_estimate(candidate, request.cluster))
    notes = (*notes, *unsure_near_limit(request, candidate))
    notes = (*notes, *saving_notes(candidate, request.shape, request.job, request.cluster, decides=False))
    planned = PlannedStrategy(
        candidate=candidate,
        job=request.job,
        cluster=request.cluster,
        notes=(*notes_on(file), *request.assumptions, *notes),
        fits=fitting if resolved.vram_named else None,
        not_modelled=moves_memory(unmodelled),
    )
    config = None if config_file is None else config_file.config
    return Estimate(
        planned=planned,
        model_name=resolved.model_name,
        file_config=config,
        trainer_file=file,
        nearest=lambda: nearest_to(request.for_remarks(), strategy, best_plan),
    )


@without_collecting()
def size(
    options: Mapping[str, Any],
    *,
    file: TrainerFile | None = None,
    price: str | None = None,
    tokens: str | None = None,
    cheapest: bool = False,
    say: Say | None = None,
) -> SizeResult:
    """Find the fewest GPUs of each kind that can do the job; ``file``: a trainer's own, whose job it is.
    Raises InputError: an argument that cannot be; names it and the fix."""
    from functools import partial

    from zerokit.planner.size_result import fewest

    count = partial(fewest, price=price, tokens=tokens, cheapest=cheapest, say=say)
    if file is None:
        return count(options)
    from zerokit.planner.options import given_options
    from zerokit.planner.trainer_file import job_options, notes_on
    from zerokit.values import replace

    with _said_by_key(file, options):
        found = count(job_options(file, options, on_these_gpus=False))
    notes = (*notes_on(file), *found.notes)
    return replace(found, notes=notes, request=given_options(options), trainer_file=file.path)
