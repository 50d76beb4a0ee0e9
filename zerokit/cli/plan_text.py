"""Plans and estimates for people: plain text, aligned, no wider than the terminal.

The answer comes first and fits a screen of 24 lines of 80 columns; the rest is for ``--explain``.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.cli.prose import bullets, command_lines, heading, paragraph, styled, width, wrap
from zerokit.domain import strategy
from zerokit.domain.strategy import Saving
from zerokit.emit.deepspeed import trainer_arguments
from zerokit.emit.files import emitter_of
from zerokit.fields import as_options
from zerokit.memory.components import label
from zerokit.notes import Note, on_topic, with_id
from zerokit.planner import answer, documents
from zerokit.planner.documents import Estimate, PlannedStrategy
from zerokit.search.explain import (
    cluster_words,
    host_lack_words,
    is_sure,
    remark,
    share_words,
    strategy_words,
)
from zerokit.search.plan import WHAT_WOULD_FIT
from zerokit.trainer_files import KEPT
from zerokit.trainer_files import NOTES as OF_FILE
from zerokit.units import counted, format_gib, format_seconds
from zerokit.values import frozen_dataclass

if TYPE_CHECKING:
    from zerokit.planner.plan_result import PlanResult, RehearsalRecord


_SCREEN = 24
_CLOSING = "--explain adds memory and time in detail, other plans, and every file"
_BAR = 24
_NAMES = 13
_BESIDE_FIT = ("under-deepspeed", "not-shared", "engine-left-out")
"""Notes that stand beside what fits, which no screen is too small for."""
_MOST_GAINS = 3
_MOST_OTHERS = 2  # rehearsals beside the choice's that the first screen has in full


def memory_table(estimate: Estimate, capacity_bytes: int | None, device: str = "GPU") -> list[str]:
    """Components at the peak of the worst rank, then the sum and what is around it."""
    worst = estimate.worst_rank
    parts = [
        (label(name), size) for name, size in sorted(worst.components.items(), key=lambda item: -item[1])
    ]
    column = max([len(name) for name, _ in parts] + [28])
    peak, bar = worst.peak_allocated_bytes, min(_BAR, width() - column - len("    1,234.56 GiB  "))
    lines = [
        f"  {name:<{column}}  {format_gib(size):>12}  {'█' * round(bar * size / peak) if peak else ''}"
        for name, size in parts
    ]
    required = estimate.min_vram_bytes
    rule = f"  {'':<{column}}  {'-' * 12}"

    def rows_of(sizes: Iterable[tuple[str, int]]) -> list[str]:
        return [f"  {name:<{column}}  {format_gib(size):>12}" for name, size in sizes]

    lines += [rule, *rows_of([(f"peak allocated ({worst.peak_phase})", peak)])]
    lines += [*rows_of(estimate.around_peak.items()), rule, *rows_of([(f"required per {device}", required)])]
    if capacity_bytes:
        room = "headroom" if capacity_bytes >= required else "too much"
        lines += rows_of(
            [(f"available per {device}", capacity_bytes), (room, abs(capacity_bytes - required))]
        )
    return lines


def host_table(planned: PlannedStrategy) -> list[str]:
    """What the ranks of one node hold of its memory, by what it is, and what the node has."""
    estimate, cluster = planned.estimate, planned.cluster
    total = estimate.host_bytes_per_node
    parts = documents.host_parts(planned)
    ranks = max(1, planned.strategy.world_size // cluster.nodes)
    sums = [(f"required by {counted(ranks, 'rank')}", total)]
    if cluster.host_ram_bytes is not None:
        sums.append(("available per node", cluster.host_ram_bytes))
    column = max(28, *(len(name) for name, _ in (*parts, *sums)))
    lines = [f"  {name:<{column}}  {format_gib(size):>12}" for name, size in parts]
    lines += [f"  {'':<{column}}  {'-' * 12}"] if parts else []
    return [*lines, *(f"  {name:<{column}}  {format_gib(size):>12}" for name, size in sums)]


def phases(estimate: Estimate) -> str:
    """``init 12.1, forward 30.0, …``."""
    sizes = estimate.worst_rank.phases.items()
    return "peaks by phase: " + ", ".join(f"{name} {format_gib(size)}" for name, size in sizes)


def speed(estimate: Estimate) -> list[str]:
    """Step time, throughput, and where the time goes."""
    total, per_gpu = estimate.step_seconds, estimate.tokens_per_second_per_gpu
    if total is None or per_gpu is None:
        return ["  not predicted"]
    per_billion = 1e9 / (per_gpu * estimate.planned.strategy.world_size)
    lines = paragraph(
        f"{format_seconds(total)} a step, {per_gpu:,.0f} tokens/s per GPU, "
        f"{format_seconds(per_billion)} per 1e9 tokens"
    )
    for note in documents.pace_notes(estimate.planned):
        lines += paragraph(note)
    parts = sorted(estimate.time_parts.items(), key=lambda item: -item[1])
    shares = ", ".join(
        f"{strategy.label(name)} {size / total:.0%}" for name, size in parts if size / total >= 0.005
    )
    return [*lines, *paragraph(f"where it goes: {shares}")]


def saving(estimate: Saving | None) -> list[str]:
    """What a save takes, where the job saves anything."""
    if estimate is None:
        return []
    weights = format_gib(estimate.weights_bytes, 1) if estimate.weights_bytes else "none that load"
    checkpoint, frozen = estimate.checkpoint_bytes, estimate.frozen_bytes
    if frozen:
        text = (
            f"adapters {weights}, each checkpoint of a Trainer {format_gib(checkpoint - frozen, 1)} of disk; "
            f"of a script that calls save_checkpoint itself {format_gib(checkpoint, 1)}, frozen weights too "
            "(save_checkpoint(exclude_frozen_parameters=True) leaves them out)"
        )
    else:
        text = f"weights {weights}, each checkpoint {format_gib(checkpoint, 1)} of disk"
    lines = paragraph(text)
    if estimate.host_bytes:
        lines += paragraph(
            f"gathered on rank 0: {format_gib(estimate.host_bytes, 1)} of its host's RAM, "
            f"{format_seconds(estimate.seconds)} and the disk's time"
        )
    return [heading("Saving"), *lines]


def rows(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Names and their values, the values wrapped beside the names."""
    table = []
    for name, value in pairs:
        table += textwrap.wrap(
            value, width(), initial_indent=f"  {name:<{_NAMES}}", subsequent_indent=" " * (_NAMES + 2),
            break_on_hyphens=False,
        )  # fmt: skip
    return table


def _strategy(planned: PlannedStrategy, brief: bool) -> list[str]:
    """The strategy in rows; ``brief``: without the parts of memory."""
    long = ("GPU memory", "tensors", "host memory") if brief else ()
    return rows(
        (name, text.partition(":")[0] if name in long else text) for name, text in documents.facts(planned)
    )


def _answer(
    planned: PlannedStrategy,
    title: str,
    remarks: Sequence[str] = (),
    faster: Sequence[str] = (),
    brief: bool = False,
    first: Sequence[str] = (),
) -> list[str]:
    """``first``: what stands before what fits; ``remarks``: what belongs to the answer beside it; ``faster``:
    beside how fast."""
    lines = wrap(title, later="  ")
    said = (
        *(note[0].upper() + note[1:] for note in remarks),
        documents.pace(planned),
        *faster,
        *documents.pace_notes(planned),
    )
    for text in first:
        lines += wrap(text)
    lines += [styled(line, bold=True, fg=_colour(planned)) for line in wrap(documents.fits(planned))]
    for text in said:
        lines += wrap(text)
    return [*lines, "", *_strategy(planned, brief)]


def _colour(planned: PlannedStrategy) -> str | None:
    """Colour of the line that says whether it fits: green, yellow where that is not sure or hardly, red."""
    if not planned.fits:
        return None if planned.fits is None else "red"
    memory, cluster = planned.candidate.memory, planned.cluster
    is_clear = is_sure(memory, cluster.gpu) and not remark(planned.candidate, cluster.gpu)
    return "green" if is_clear and not host_lack_words(memory, cluster) else "yellow"


def _details(planned: PlannedStrategy) -> list[str]:
    """Memory by component and phase, host memory, saving and speed."""
    estimate = planned.estimate
    device = planned.device
    capacity = None if planned.fits is None else planned.cluster.gpu.driver_vram_bytes
    lines = [heading(f"Memory per {device} (worst rank)"), *memory_table(estimate, capacity, device)]
    lines += paragraph(phases(estimate))
    lines += [heading("Host memory per node"), *host_table(planned)]
    lines += saving(estimate.saving)
    return [*lines, heading("Expected speed"), *speed(estimate)]


def _todo(planned: PlannedStrategy, notes: Sequence[Note], *, with_plan: bool = True) -> list[str]:
    """What the script must do, never cut; a script that was rehearsed does all but what would be lost."""
    does_it = planned.estimate.basis == "rehearsed"
    todo = () if does_it else answer.script_must(planned.strategy, planned.job, with_plan=with_plan)
    todo += on_topic(notes, "must")
    return [heading("The script must"), *bullets(todo)] if todo else []


def _others(notes: Sequence[Note], *ids: str) -> list[Note]:
    """The notes that do not stand under what the script must do, nor have one of these ids."""
    return [note for note in notes if note.topic != "must" and note.id not in ids]


def plan(
    result: PlanResult, folder: str | None, *, explain: bool, script: Sequence[str] | None = None
) -> str:
    """The answer: what fits and how fast, what was assumed, what to run next; ``explain`` adds the rest.
    ``folder``: of the files, if they were written; ``script``: the words of the script that was planned
    for."""
    planned, notes, advice = result.chosen, result.plan.assumptions, result.plan.advice
    surer, near_limit = with_id(advice, "surely-fits", "narrow"), with_id(advice, "near-limit")
    beside = [result.against.words] if result.against and result.against.words else []
    unsure, faster = [*beside, *(note.short for note in near_limit)], _gains(result)
    advice = tuple(note for note in advice if note not in surer)
    idle = [result.plan.left_idle] if result.plan.left_idle else []
    title = f"Plan for {result.model_name} on {cluster_words(result.cluster)}"
    fails = [answer.fails(result.to_fix)] if result.to_fix else []
    tracing = next((note.command for note in with_id(notes, "trace-model") if note.command), "")
    closed = [f"{note}; see Next" if tracing else note for note in with_id(notes, "closed-form")]
    remarks = [*with_id(notes, *OF_FILE), *closed, *idle, *surer, *with_id(notes, *_BESIDE_FIT)]
    todo = [] if result.trainer_file is not None else _todo(planned, notes)
    below = [*_changed(result), *todo, *_rehearsed(result, explain=explain)]
    more = [] if explain else _short_rows(notes, folder)
    lines = [*_answer(planned, title, remarks, (*unsure, *faster), first=fails), *more, *below]
    following = [heading("Next"), *_next(result, folder, explain and script is None, script)]
    if tracing:
        following += command_lines(tracing, "traces the model; then plan again")
    told = ("closed-form", *_BESIDE_FIT, *OF_FILE)
    assumed = _others(notes, *told, *(["trace-model"] if tracing else []))
    if not explain:
        answered = _answer(planned, title, remarks, unsure, brief=True, first=fails)
        shorter = [*answered, *_short_rows(notes, None), *below]
        assumed = [note for note in _others(assumed, "left-idle") if note.topic != "default"]
        return "\n".join(_filled(lines, shorter, assumed, advice, following))
    lines += _listed("Assumed", len(assumed), assumed)
    lines += _listed("Worth knowing", len(advice), advice)
    return "\n".join([*lines, *_reasons(result), *following])


def _changed(result: PlanResult) -> list[str]:
    """The lines of a trainer's file that the plan changes, each with the reason."""
    if result.trainer_file is None:
        return []
    told = [
        f"{one.key}: {_as_yaml(one.before)} -> {_as_yaml(one.after)} ({one.why})" for one in result.changes
    ]
    title = f"Changed in {result.trainer_file.path}"
    nothing = "nothing" if with_id(result.plan.assumptions, KEPT) else "nothing: it runs as the plan does"
    return [heading(title), *bullets(told or [nothing])]


def _as_yaml(value: object) -> str:
    """A value as a short line of YAML; a block is not shown."""
    if value is None:
        return "(no line)"
    if isinstance(value, dict | list):
        return "(a block)"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short_rows(notes: Sequence[Note], folder: str | None) -> list[str]:
    """What is taken for options that were not given, which no screen is too small for, and the files."""
    defaults = as_options(", ".join(note.short for note in on_topic(notes, "default")))
    files = f"in {folder}/ (--dry-run writes none)" if folder else ""
    return rows((name, text) for name, text in (("assumed", defaults), ("files", files)) if text)


def _gains(result: PlanResult) -> list[str]:
    """``Faster: 29% with --optimizer adamw_8bit, 18% with …``: the changes of the job that gain most."""
    told = [f"{share_words(one.share)} with {one.remedy.title}" for one in result.plan.gains[:_MOST_GAINS]]
    return [f"Faster: {', '.join(told)}"] if told else []


def _reasons(result: PlanResult) -> list[str]:
    plan = result.plan
    lines = [heading("Chosen"), *paragraph(plan.chosen.why), *_details(result.chosen)]
    if result.against is not None:
        # the strategy that the plan was compared with, and what each part of its step takes more
        more = ", ".join(
            f"{strategy.label(name)} {'' if took < 0 else '+'}{took:.2f} s"
            for name, took in result.against.more_seconds.items()
        )
        lines += [
            heading(f"Against {result.against.path}"),
            *paragraph(f"{strategy_words(result.against.theirs.planned.strategy)}: {more}"),
        ]
    if plan.alternatives:
        lines += [heading("Next best"), *bullets(alternative.why for alternative in plan.alternatives)]
    if plan.faster_with:
        lines += [heading("Would be faster"), *bullets(plan.faster_with)]
    lines += [heading(f"Rejected, of {plan.candidates:,} candidates in {plan.seconds:.2f} s")]
    for reason, count in plan.rejected.items():
        lines += wrap(answer.why_rejected(reason), f"  {count:>9,}  ", " " * 13)
    chosen_values = answer.starting_points(result.chosen.strategy, result.job)
    if chosen_values and not result.job.inference:
        lines += [heading("Also set, though not asked for"), *paragraph(chosen_values)]
    if result.files:
        lines += [heading("Files"), *(f"  {path}" for path in result.files.values())]
    return lines


def _rehearsed(result: PlanResult, *, explain: bool) -> list[str]:
    """The rehearsals of a plan for a script, one line each; of many that went well, without ``explain``, that
    of the choice, and how many others."""
    if not result.rehearsals:
        return []
    name = result.script.name if result.script else ""
    if all(rehearsal.min_vram_bytes is None for rehearsal in result.rehearsals):
        title = f"Not rehearsed: {name}; memory and time are those of a plain training loop"
    else:
        title = f"Rehearsed: {name}"
    choice = result.script.of(result.chosen.strategy) if result.script else None
    of_choice = [one for one in result.rehearsals if choice is not None and one.strategy == choice.strategy]
    others = [one for one in result.rehearsals if one not in of_choice and one.min_vram_bytes is not None]
    left_out = others if of_choice and not explain and len(others) > _MOST_OTHERS else []
    rows = [
        f"{'this plan: ' if one in of_choice else ''}{_rehearsal_words(result, one)}"
        for one in result.rehearsals
        if one not in left_out
    ]
    sizes = [one.min_vram_bytes or 0 for one in left_out]
    if left_out:
        between = f"{format_gib(min(sizes), 1)} to {format_gib(max(sizes), 1)}"
        rows.append(f"{len(left_out)} others: {between} required (--explain)")
    return ["", *wrap(title, later="  "), *bullets(rows)]


def _rehearsal_words(result: PlanResult, rehearsal: RehearsalRecord) -> str:
    """The strategy of one rehearsal, and what it told."""
    told = f"stopped: {rehearsal.stopped}"
    if rehearsal.min_vram_bytes is not None:
        told = f"{format_gib(rehearsal.min_vram_bytes, 1)} required"
    if rehearsal.step_seconds is not None:
        rows = result.script.rows(rehearsal.strategy.global_batch) if result.script else ""
        told += f", {format_seconds(rehearsal.step_seconds)} a step of {rows}"
    probe = " (a probe)" if rehearsal.probe else ""
    return f"{strategy_words(rehearsal.strategy)}{probe}: {told}"


def _next(result: PlanResult, folder: str | None, explain: bool, script: Sequence[str] | None) -> list[str]:
    if result.to_fix:
        return paragraph(answer.fix_first(result.to_fix))
    launched = emitter_of(result.chosen.strategy).launched or result.trainer_file is not None
    if folder is None:
        takes = "zerokit" if launched else "accelerate"
        return paragraph(f"without --dry-run, `plan` writes the files that `{takes} launch` takes")
    words = script or result.launched_words
    comment = "" if words or Path("train.py").exists() else "train.py: your script"
    lines = command_lines(result.run_command(folder, words), comment)
    added: Sequence[str] = ()
    if script:
        added, heading_text = result.added_arguments, "which adds (--no-arguments adds nothing):"
    elif explain and launched and not result.job.inference and result.chosen.pipeline_parallel == 1:
        added = trainer_arguments(result.chosen.strategy, result.job)
        heading_text = "which gives a Hugging Face Trainer script:"
    if added:
        lines.append(f"  {heading_text}")
        words = shlex.join(added).replace(" --", "\x00--").split("\x00")
        lines += textwrap.wrap(
            " ".join(part.replace(" ", "\xa0") for part in words), width(),
            initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False,
        )  # fmt: skip
    return [line.replace("\xa0", " ") for line in lines]


@frozen_dataclass
class NextCommand:
    """What to run next, what it does, what to know of a word in it; whether it launches without a plan."""

    command: str
    does: str
    comment: str = ""
    without_plan: bool = False


def estimate(
    result: Estimate,
    *,
    explain: bool,
    plan_command: str,
    next_command: NextCommand | None,
) -> str:
    """The answer for one configuration; ``explain`` adds memory and time in detail. ``plan_command``: what
    plans the same job, shown where this does not fit; ``next_command``: the next step where it fits."""
    planned, notes = result.planned, result.notes
    title = f"{result.model_name} on {cluster_words(planned.cluster)}"
    lines = _answer(planned, title, with_id(notes, *OF_FILE))
    with_plan = next_command is None or not next_command.without_plan
    if result.trainer_file is None:
        lines += _todo(planned, notes, with_plan=with_plan)
    assumptions = _others(notes, *OF_FILE)
    lines += _listed(
        "Assumed", len(assumptions), assumptions if explain else answer.worth_a_look(assumptions)
    )
    if explain:
        lines += _details(planned)
    following = []
    if planned.fits is False:
        if nearest := result.nearest():
            lines += [heading(WHAT_WOULD_FIT.removesuffix(":")), *bullets(nearest)]
        following += [*command_lines(plan_command), *paragraph("finds the fastest strategy that fits")]
    elif planned.fits and next_command is not None:
        following += [*command_lines(next_command.command, next_command.comment)]
        following += paragraph(next_command.does)
    elif planned.fits is None:
        following += paragraph("add --gpus N --gpu NAME (`zerokit gpus` lists them), or ask `zerokit size`")
    if not explain:
        following += paragraph("--explain adds memory and time in detail")
    if following:
        lines += [heading("Next"), *following]
    return "\n".join(lines)


def _filled(
    lines: Sequence[str],
    shorter: Sequence[str],
    assumptions: Sequence[Note],
    advice: Sequence[Note],
    following: Sequence[str],
) -> list[str]:
    """The answer (``lines``, or ``shorter`` without details, where those would fill the screen), as many
    notes as there is room for, and what to run next."""
    screen: list[str] = []
    for answered in (lines, shorter):
        notes, closing = _notes(assumptions, advice, _SCREEN - _height([*answered, *following]))
        screen = [*answered, *notes, *following, *closing]
        if _height(screen) > _SCREEN:
            screen.remove("")
        if _height(screen) <= _SCREEN:
            return screen
    dense = [line.lstrip("\n") for line in shorter if line]
    if _height([*dense, *following, *closing]) > _SCREEN:
        following = [line.lstrip("\n") for line in following]
    return [*dense, *following, *closing]


def _listed(title: str, count: int, shown: Sequence[str]) -> list[str]:
    """The notes that are shown of so many, below a title that says how many are not."""
    more = f" ({count - len(shown)} more: --explain)" if count > len(shown) else ""
    return [heading(title + more), *bullets(shown)] if shown else []


def _notes(assumptions: Sequence[Note], advice: Sequence[Note], room: int) -> tuple[list[str], list[str]]:
    """What was assumed and is worth knowing, and the line that closes the answer, in ``room`` lines: first
    the assumptions from the last on, as warnings stand last, then advice, then minor notes."""
    worthy = answer.worth_a_look(assumptions)
    # why a stage that was not chosen would be worse belongs to the details
    first = [note for note in advice if note.id != "stage-3-takes-more"][:1]
    minor = on_topic(worthy, "minor")

    def listed(shown: Mapping[str, str]) -> list[str]:
        assumed = [shown[note] for note in worthy if note in shown]
        known = [shown[note] for note in first if note in shown]
        return [
            *_listed("Assumed", len(assumptions), assumed), *_listed("Worth knowing", len(advice), known)
        ]  # fmt: skip

    for closing in (paragraph(_CLOSING), []):
        shown = dict[str, str]()
        for note in (*reversed([one for one in worthy if one not in minor]), *first, *minor):
            texts = (str(note), f"{note.short} …") if note.short else (str(note),)
            more = ({**shown, note: text} for text in texts)
            shown = next((one for one in more if _height([*listed(one), *closing]) <= room), shown)
        if shown or not worthy:
            return listed(shown), closing
    return [], paragraph("--explain adds what was assumed, memory and time in detail, and other plans")


def _height(lines: Iterable[str]) -> int:
    """Lines on the terminal: a heading brings an empty one."""
    return sum(line.count("\n") + 1 for line in lines)
